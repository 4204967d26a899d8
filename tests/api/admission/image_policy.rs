//! ImagePolicyWebhook, with a server that decides about images.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::support::hook_server::{HookServer, Reply};
use crate::support::wait::{TIMEOUT, poll};

/// Refuses images that are called bad, and says nothing sensible about strange ones.
fn image_server() -> HookServer {
    HookServer::start("images.test", |_, review| {
        let containers = review["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let has = |word: &str| containers.iter().any(|container| container["image"] == word);
        let status = match () {
            () if has("strange") => return Reply::Raw("200 OK", json!({"kind": "Pod"}).to_string()),
            () if has("broken") => return Reply::Raw("503 Service Unavailable", String::new()),
            () if has("silent") => json!({"allowed": false}),
            () if has("bad") => json!({"allowed": false, "reason": "bad is bad"}),
            () => json!({"allowed": true, "auditAnnotations": {"audit-required": "true", "no name!": "x"}}),
        };
        let review =
            json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": status});
        Reply::Raw("201 Created", review.to_string())
    })
}

/// A server that asks `images`, and its audit log.
struct ReviewedServer {
    server: Server,
    folder: TempDir,
}

impl ReviewedServer {
    fn new(images: &HookServer, more: &str) -> ReviewedServer {
        let folder = temp_directory();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let ca = write("ca.pem", String::from_utf8(images.ca_pem.clone()).unwrap());
        let kubeconfig = write(
            "images.kubeconfig",
            format!(
                "clusters: [{{name: c, cluster: {{server: '{}', certificate-authority: {ca}}}}}]\nusers: [{{name: u, user: \
                 {{token: s3cret}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n",
                images.url("/review")
            ),
        );
        let admission = write(
            "admission.yaml",
            format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ImagePolicyWebhook\n  \
                 configuration: {{imagePolicy: {{kubeConfigFile: {kubeconfig}, retryBackoff: 1{more}}}}}\n"
            ),
        );
        let policy = write(
            "audit.yaml",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n".into(),
        );
        let log = folder.path().join("audit.log");
        let server = Server::with_flags(&[
            "--enable-admission-plugins=ImagePolicyWebhook",
            &format!("--admission-control-config-file={admission}"),
            &format!("--audit-policy-file={policy}"),
            &format!("--audit-log-path={}", log.display()),
        ]);
        ReviewedServer { server, folder }
    }

    /// Audit annotations of the plug-in, of the request for this URI.
    fn annotations(&self, uri: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.path().join("audit.log")).unwrap_or_default();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_uri =
            events.filter(|event| event["requestURI"] == uri && event["stage"] == "ResponseComplete");
        of_uri.map(|event| event["annotations"].clone()).collect()
    }
}

fn image_pod(name: &str, image: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"a.image-policy.k8s.io/ticket": "7", "other": "x"}},
        "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[test]
fn image_policy_webhook_decides_about_images_of_pods() {
    let images = image_server();
    let reviewed = ReviewedServer::new(&images, "");
    let mut admin = reviewed.server.admin();
    admin.post(PODS, &image_pod("a", "good")).ok();
    let review = images.requests().pop().unwrap();
    assert_eq!(
        review,
        json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1",
            "metadata": {"creationTimestamp": null}, "status": {"allowed": false},
            "spec": {"containers": [{"image": "good"}], "namespace": "default",
                "annotations": {"a.image-policy.k8s.io/ticket": "7"}}})
    );
    assert!(images.last_head().contains("authorization: bearer s3cret"), "{}", images.last_head());
    assert_eq!(images.targets(), ["/review"]);
    admin.post(PODS, &image_pod("b", "good")).ok();
    assert_eq!(images.requests().len(), 1, "the answer is remembered");

    let mut with_init = image_pod("i", "good");
    with_init["spec"]["initContainers"] = json!([{"name": "i", "image": "bad"}]);
    let denied = "image policy webhook backend denied one or more images: bad is bad";
    expect_forbidden(&mut admin, PODS, &image_pod("c", "bad"), denied);
    expect_forbidden(&mut admin, PODS, &with_init, denied);
    expect_forbidden(
        &mut admin,
        PODS,
        &image_pod("c", "silent"),
        "one or more images rejected by webhook backend",
    );
    expect_forbidden(
        &mut admin,
        PODS,
        &image_pod("c", "strange"),
        "the image policy webhook sent an invalid response: it is not an ImageReview of imagepolicy.k8s.io/v1alpha1",
    );
    let calls = images.requests().len();
    expect_forbidden(&mut admin, PODS, &image_pod("c", "bad"), denied);
    assert_eq!(images.requests().len(), calls, "refusals are remembered, too");

    // Changed images and ephemeral containers are reviewed; other subresources are not.
    let image = |image: &str| json!({"spec": {"containers": [{"name": "c", "image": image}]}});
    let pod = format!("{PODS}/a");
    let refused = admin.patch(&pod, "strategic-merge", &image("bad")).expect_error(403, "Forbidden");
    assert_eq!(text(&refused, "/message"), format!("pods \"a\" is forbidden: {denied}"));
    admin.patch(&pod, "strategic-merge", &image("better")).ok();
    let ephemeral = |image: &str| json!({"spec": {"ephemeralContainers": [{"name": image, "image": image}]}});
    let path = format!("{pod}/ephemeralcontainers");
    admin.patch(&path, "strategic-merge", &ephemeral("bad")).expect_error(403, "Forbidden");
    admin.patch(&path, "strategic-merge", &ephemeral("debug")).ok();
    assert_eq!(images.requests().pop().unwrap()["spec"]["containers"], json!([{"image": "debug"}]));
    let calls = images.requests().len();
    admin.patch(&format!("{pod}/status"), "merge", &json!({"status": {"reason": "x"}})).ok();
    admin.delete(&format!("{PODS}/b")).ok();
    assert_eq!(images.requests().len(), calls);

    let annotation = "imagepolicywebhook.image-policy.k8s.io/audit-required";
    let events = poll(TIMEOUT, || Some(reviewed.annotations(PODS)).filter(|events| events.len() >= 7));
    let events = events.expect("the creates are audited");
    assert_eq!(events[0][annotation], "true");
    assert_eq!(events[1][annotation], "true", "also from memory");
    assert_eq!(events[2].get(annotation), None);
    assert!(events.iter().all(|event| !event.to_string().contains("no name!")));
}

#[test]
fn image_policy_webhook_that_fails_refuses_pods_unless_configured_otherwise() {
    let images = image_server();
    for (more, is_open) in [("", false), (", defaultAllow: true", true)] {
        let reviewed = ReviewedServer::new(&images, more);
        let mut admin = reviewed.server.admin();
        let response = admin.post(PODS, &image_pod("a", "broken"));
        match is_open {
            true => {
                let pod = response.ok();
                assert_eq!(
                    pod["metadata"]["annotations"],
                    image_pod("a", "broken")["metadata"]["annotations"]
                );
                let event = poll(TIMEOUT, || reviewed.annotations(PODS).pop()).expect("it is audited");
                assert_eq!(event["imagepolicywebhook.image-policy.k8s.io/failed-open"], "true");
            }
            false => {
                let message = text(&response.expect_error(403, "Forbidden"), "/message").to_owned();
                let expected = "the image policy webhook cannot be called: unexpected HTTP status 503";
                assert!(message.contains(expected), "{message}");
            }
        }
        expect_forbidden(&mut admin, PODS, &image_pod("b", "bad"), "bad is bad");
    }
    let closed = ReviewedServer::new(&images, "");
    images.kill();
    let refused = closed.server.admin().post(PODS, &image_pod("a", "good")).expect_error(403, "Forbidden");
    assert!(text(&refused, "/message").contains("the image policy webhook cannot be called"), "{refused}");
    assert!(!closed.server.log().contains("s3cret"));
}

#[test]
fn start_refuses_invalid_image_policy_configuration() {
    let directory = temp_directory();
    let refuses = |config: &str, expected: &str| {
        let file = directory.path().join("admission.yaml");
        // A file that is the configuration of the plug-in alone, as older releases have it.
        fs::write(&file, format!("imagePolicy: {{{config}}}\n")).unwrap();
        let flag = format!("--admission-control-config-file={}", file.display());
        let flags = ["--enable-admission-plugins=ImagePolicyWebhook", flag.as_str()];
        match Server::try_start_in(Path::new(&directory.path().join("data")), &flags) {
            Ok(_) => panic!("the server started with {config}"),
            Err(failure) => assert!(failure.stderr.contains(expected), "{failure:?}"),
        }
    };
    refuses("allowTTL: 1801", "ImagePolicyWebhook: allowTTL: valid value is between 1s and 1800s");
    refuses("kubeConfigFile: /nowhere/at/all", "ImagePolicyWebhook: kubeConfigFile: ");
}
