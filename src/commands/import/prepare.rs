//! Frees an object of what belongs to its old cluster: fields that a server sets, and UIDs of other objects.

use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::ACCOUNT_TOKEN_TYPE;
use pilothouse_apimachinery::well_known::annotations::ACCOUNT_UID;

use super::bindings::Side;
use super::intake::Entry;
use crate::commands::object_stream::resource::{Resource, annotation};

/// Fields of the metadata that a server sets.
const SERVER_FIELDS: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];
/// Labels of a Job's pods with the UID of the Job.
const JOB_UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
/// What a token Secret contains: the token is of the old cluster, and the new one fills in all of it again.
const TOKEN_FIELDS: [&str; 3] = ["token", "ca.crt", "namespace"];
/// An object that can be created.
pub(super) struct Prepared {
    /// The object.
    pub body: Value,
    /// Its status, if that is written on its own.
    pub status: Option<Value>,
    /// Whether there may be something to add once everything exists.
    pub needs_patch: bool,
}

/// Prepares an object, whose owner references are those of the new cluster. `new_uid` is the UID there of an object that has been
/// imported, by the UID that it had.
pub(super) fn prepare(
    mut object: Value,
    entry: &Entry,
    resource: &Resource,
    new_uid: &dyn Fn(&str) -> Option<String>,
) -> Prepared {
    let metadata = object.entry("metadata");
    for field in SERVER_FIELDS {
        metadata.remove(field);
    }
    match entry.namespace.is_empty() {
        true => _ = metadata.remove("namespace"),
        false => metadata.set("namespace", &*entry.namespace),
    }
    let status = if resource.has_status { object.remove("status") } else { None };
    let needs_patch = Side::for_resource(resource).is_some_and(|side| side.unbind(&mut object));
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Secret") if object.str("type") == ACCOUNT_TOKEN_TYPE => prepare_token(&mut object, new_uid),
        ("", "Pod") => map_job_labels(&mut object, new_uid),
        ("batch", "Job") => prepare_job(&mut object),
        _ => {}
    }
    Prepared { body: object, status: status.filter(|status| !is_empty(status)), needs_patch }
}

fn is_empty(status: &Value) -> bool {
    status.is_null() || status.fields().is_some_and(|fields| fields.is_empty())
}

/// The controller of token Secrets deletes one whose service account has another UID.
fn prepare_token(secret: &mut Value, new_uid: &dyn Fn(&str) -> Option<String>) {
    let uid = new_uid(annotation(secret, ACCOUNT_UID));
    if let Some(annotations) = secret.entry("metadata").get_mut("annotations") {
        match uid {
            Some(uid) => annotations.set(ACCOUNT_UID, uid),
            None => _ = annotations.remove(ACCOUNT_UID),
        }
    }
    if let Some(data) = secret.get_mut("data") {
        for field in TOKEN_FIELDS {
            data.remove(field);
        }
    }
}

/// The server makes the selector of a Job from its UID, and refuses one that is given.
fn prepare_job(job: &mut Value) {
    let Some(spec) = job.get_mut("spec") else { return };
    if spec.get("manualSelector").and_then(Value::as_bool) == Some(true) {
        return;
    }
    spec.remove("selector");
    remove_job_labels(spec.entry("template"));
    // A Job whose labels are those of its template has these, too.
    remove_job_labels(job);
}

fn remove_job_labels(object: &mut Value) {
    if let Some(labels) = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("labels")) {
        for label in JOB_UID_LABELS {
            labels.remove(label);
        }
    }
}

/// The pods of a Job are found by its UID.
fn map_job_labels(pod: &mut Value, new_uid: &dyn Fn(&str) -> Option<String>) {
    let Some(labels) = pod.entry("metadata").get_mut("labels") else { return };
    for label in JOB_UID_LABELS {
        let uid = labels.get(label).and_then(Value::as_str).and_then(new_uid);
        if let Some(uid) = uid {
            labels.set(label, uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::super::intake::VersionKind;
    use super::*;
    use crate::commands::object_stream::spool::SpoolWriter;

    fn resource(group: &str, kind: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            name: String::new(),
            kind: kind.to_owned(),
            is_namespaced: true,
            has_status: true,
            is_aggregated: false,
        }
    }

    fn new_uid(uid: &str) -> Option<String> {
        (uid == "old").then(|| "new".to_owned())
    }

    fn prepared(group: &str, kind: &str, text: &str) -> (String, Option<Value>, bool) {
        let object = yaml::read(text.as_bytes()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let entry = Entry {
            span: SpoolWriter::create(directory.path()).unwrap().push(&object).unwrap(),
            kind: VersionKind { api_version: String::new(), kind: String::new() }.into(),
            namespace: "n".into(),
            name: "a".into(),
            uid: "".into(),
            owners: Box::default(),
        };
        let resource = resource(group, kind);
        let prepared = prepare(object, &entry, &resource, &new_uid);
        let body = String::from_utf8(pilothouse_apimachinery::json::to_json(&prepared.body)).unwrap();
        (body, prepared.status, prepared.needs_patch)
    }

    #[test]
    fn fields_of_the_server_are_removed() {
        let (body, status, needs_patch) = prepared(
            "apps",
            "Deployment",
            "{metadata: {name: a, uid: u, resourceVersion: '5', generation: 2, managedFields: []}, status: {replicas: 1}}",
        );
        assert_eq!(body, r#"{"metadata":{"name":"a","namespace":"n"}}"#);
        assert_eq!((status, needs_patch), (Some(yaml::read(b"{replicas: 1}").unwrap()), false));
        assert_eq!(prepared("apps", "Deployment", "{status: {}}").1, None);
    }

    #[test]
    fn token_secret_is_emptied_and_bound_to_its_account() {
        let secret = |uid: &str| {
            format!(
                "{{type: kubernetes.io/service-account-token, data: {{token: eA==, ca.crt: eA==, extra: eA==}},
                 metadata: {{annotations: {{kubernetes.io/service-account.uid: {uid}}}}}}}"
            )
        };
        let (body, ..) = prepared("", "Secret", &secret("old"));
        assert!(
            body.contains(r#""data":{"extra":"eA=="}"#) && body.contains(r#"account.uid":"new""#),
            "{body}"
        );
        let (body, ..) = prepared("", "Secret", &secret("other"));
        assert!(body.contains(r#""annotations":{}"#), "{body}");
    }

    #[test]
    fn volumes_and_claims_need_a_patch_if_they_were_bound() {
        let volume = "{spec: {claimRef: {name: c, uid: old, resourceVersion: '1'}}}";
        let (body, _, needs_patch) = prepared("", "PersistentVolume", volume);
        assert!(needs_patch && body.contains(r#""claimRef":{"name":"c"}"#), "{body}");
        let claim = "{metadata: {annotations: {pv.kubernetes.io/bind-completed: 'yes', a: b}}}";
        let (body, _, needs_patch) = prepared("", "PersistentVolumeClaim", claim);
        assert!(needs_patch && body.contains(r#""annotations":{"a":"b"}"#), "{body}");
        assert!(!prepared("", "PersistentVolume", "{spec: {}}").2);
    }

    #[test]
    fn jobs_get_a_new_selector_and_their_pods_its_uid() {
        let job = "{spec: {selector: {matchLabels: {controller-uid: old}},
                    template: {metadata: {labels: {controller-uid: old, job-name: a}}}}}";
        let (body, ..) = prepared("batch", "Job", job);
        assert!(!body.contains("controller-uid") && !body.contains("selector"), "{body}");
        let (body, ..) = prepared("batch", "Job", "{spec: {manualSelector: true, selector: {}}}");
        assert!(body.contains("selector"), "{body}");
        let pod = "{metadata: {labels: {batch.kubernetes.io/controller-uid: old, controller-uid: other}}}";
        let (body, ..) = prepared("", "Pod", pod);
        assert!(
            body.contains(r#"batch.kubernetes.io/controller-uid":"new","controller-uid":"other""#),
            "{body}"
        );
    }
}
