//! Acting as somebody else, and asking who one is.

use super::Kubectl;
use super::support::{Server, wait};

#[test]
fn acting_as_somebody_else() {
    let server = Server::with(&["--engine=memory", "--authorization-mode=RBAC", "--controllers=*"]);
    let kubectl = Kubectl::new(&server);
    // What the default roles gather from others comes with a control loop.
    let mut admin = server.admin();
    let view = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    wait::poll(wait::CAP, || (!admin.get(view).ok()["rules"].is_null()).then_some(())).expect("its rules");
    let refused = |arguments: &[&str]| {
        let output = kubectl.try_run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let pods = ["get", "pods", "--as=bob", "--as-group=testers"];
    assert!(refused(&pods).contains("User \"bob\" cannot list resource \"pods\""));
    assert!(refused(&["auth", "can-i", "list", "pods", "--as=bob"]).starts_with("no"));
    kubectl.run(&["create", "rolebinding", "view", "--clusterrole=view", "--group=testers"]);
    kubectl.run(&pods);
    let asked = kubectl.run(&["auth", "can-i", "list", "pods", "--as=bob", "--as-group=testers"]);
    assert_eq!(asked.trim(), "yes");
    // They are bob now, with all that bob may not do.
    assert!(refused(&["create", "configmap", "x", "--as=bob", "--as-group=testers"]).contains("\"bob\""));
    let both = ["get", "pods", "--as=system:serviceaccount:default:reader"];
    assert!(refused(&both).contains("system:serviceaccount:default:reader"));
    kubectl.run(&[
        "create",
        "rolebinding",
        "reader",
        "--clusterrole=view",
        "--serviceaccount=default:reader",
    ]);
    kubectl.run(&both);

    // Old releases do not know the question.
    if kubectl.run(&["auth", "--help"]).contains("whoami") {
        let me = kubectl.run(&["auth", "whoami", "--as=bob", "--as-group=testers", "-o", "yaml"]);
        for line in ["    username: bob", "    - testers", "    - system:authenticated"] {
            assert!(me.lines().any(|known| known == line), "{line} in {me}");
        }
    }
}
