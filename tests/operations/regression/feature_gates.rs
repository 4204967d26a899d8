//! Fields behind feature gates.

use super::*;

/// Fields of alpha features were dropped even with their gates enabled.
#[test]
fn gated_fields_follow_feature_gates() {
    let pods = "/api/v1/namespaces/default/pods?dryRun=All";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
        "os": {"name": "linux"},
        "volumes": [{"name": "i", "image": {"reference": "r:1"}},
            {"name": "p", "projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "ca.pem"}}]}}],
        "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"},
            "volumeMounts": [{"name": "i", "mountPath": "/i"}]}]}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims?dryRun=All";
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeAttributesClassName": "gold",
        "dataSourceRef": {"apiGroup": "g.example", "kind": "K", "name": "n", "namespace": "other"}}});
    const VERSIONS: &str = "--runtime-config=storage.k8s.io/v1beta1=true";
    const GATES: &str = "--feature-gates=ContainerStopSignals=true,ImageVolume=true,ClusterTrustBundleProjection=true,\
                         CrossNamespaceVolumeDataSource=true,VolumeAttributesClass=true";
    for (flags, is_kept) in [(&["--engine=memory"][..], false), (&["--engine=memory", GATES][..], true)] {
        let server =
            Server::with_flags(&[flags, &["--disable-admission-plugins=ServiceAccount", VERSIONS]].concat());
        let mut client = server.admin();
        let spec = &client.post(pods, &pod).ok()["spec"];
        let (container, volumes) = (&spec["containers"][0], spec["volumes"].as_array().unwrap());
        assert_eq!(container["lifecycle"]["stopSignal"] == "SIGUSR1", is_kept);
        assert_eq!(container["volumeMounts"].is_array(), is_kept);
        assert_eq!(volumes.iter().any(|volume| volume["image"]["pullPolicy"] == "IfNotPresent"), is_kept);
        let sources = &volumes.iter().find(|volume| volume["name"] == "p").unwrap()["projected"]["sources"];
        assert_eq!(sources[0]["clusterTrustBundle"]["path"] == "ca.pem", is_kept);
        let class = json!({"apiVersion": "storage.k8s.io/v1beta1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "gold"}, "driverName": "d.example", "parameters": {"a": "b"}});
        let created =
            client.post("/apis/storage.k8s.io/v1beta1/volumeattributesclasses?dryRun=All", &class).ok();
        assert_eq!(created["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"]), is_kept);
        let spec = &client.post(claims, &claim).ok()["spec"];
        assert_eq!(spec["volumeAttributesClassName"] == "gold", is_kept);
        assert_eq!(spec["dataSourceRef"]["namespace"] == "other", is_kept);
    }
}

/// Two servers of one process shared the feature gates and --allow-privileged of the last one.
#[test]
fn servers_in_one_process_have_separate_feature_gates() {
    let start = |gates: &[&str], privileged: bool| {
        let mut config = Config::ephemeral();
        config.controllers.controllers = vec!["-*".to_owned()];
        config.api.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
        config.api.feature_gates = gates.iter().map(|gate| gate.parse().unwrap()).collect();
        config.api.allow_privileged = privileged;
        let server = pilothouse::Server::start(config).unwrap();
        let admin = server.admin();
        let identity = Some((&admin.certificates_pem[..], &admin.key_pem[..]));
        let client = Client::new(server.address(), server.ca_pem(), identity);
        (server, client)
    };
    let (first_server, mut first_client) =
        start(&["ContainerStopSignals=true", "MaxUnavailableStatefulSet=true"], true);
    let (second_server, mut second_client) =
        start(&["UserNamespacesSupport=false", "JobPodReplacementPolicy=false"], false);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, privileged: bool| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"os": {"name": "linux"},
            "hostUsers": true, "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"},
                "securityContext": {"privileged": privileged}}]}})
    };
    // Alternating, so that neither passes by chance.
    for name in ["a", "b"] {
        let spec = &first_client.post(pods, &pod(name, true)).ok()["spec"];
        assert_eq!(spec["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
        assert_eq!(spec["hostUsers"], true);
        let refused = second_client.post(pods, &pod(name, true)).expect_error(422, "Invalid");
        assert!(refused["message"].as_str().unwrap().contains("disallowed by cluster policy"), "{refused}");
        let spec = &second_client.post(pods, &pod(name, false)).ok()["spec"];
        assert_eq!((&spec["hostUsers"], &spec["containers"][0]["lifecycle"]), (&json!(null), &json!(null)));
    }
    let labels = json!({"a": "b"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}});
    let mut restarting_template = template;
    restarting_template["spec"]["restartPolicy"] = json!("Always");
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"},
        "spec": {"serviceName": "s", "selector": {"matchLabels": labels}, "template": restarting_template}});
    for (client, has_policy, has_default) in
        [(&mut first_client, true, true), (&mut second_client, false, false)]
    {
        let created = client.post("/apis/batch/v1/namespaces/default/jobs", &job).ok();
        assert_eq!(created["spec"]["podReplacementPolicy"] == "TerminatingOrFailed", has_policy, "{created}");
        let created = client.post("/apis/apps/v1/namespaces/default/statefulsets", &set).ok();
        assert_eq!(
            created["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1,
            has_default,
            "{created}"
        );
    }
    let has_metric = |client: &mut Client, gate: &str| client.get("/metrics").text().contains(gate);
    let gate = "kubernetes_feature_enabled{name=\"ContainerStopSignals\",stage=\"ALPHA\"} 1";
    assert!(has_metric(&mut first_client, gate) && !has_metric(&mut second_client, gate));
    first_server.stop();
    second_server.stop();
}

/// Pod-level resources and device claims were dropped even with their gates enabled.
#[test]
fn pod_level_resources_and_device_claims_follow_feature_gates() {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |claim: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}],
            "containers": [{"name": "c", "image": "i:1", "resources": {"claims": [{"name": claim}], "requests": {"cpu": "1"}}}]}})
    };
    let server = Server::with_flags(&[
        "--engine=memory",
        "--disable-admission-plugins=ServiceAccount",
        "--feature-gates=PodLevelResources=true,DynamicResourceAllocation=true",
    ]);
    let mut client = server.admin();
    let refused = client.post(pods, &pod("other")).expect_error(422, "Invalid");
    let reason = "must be one of the names in pod.spec.resourceClaims: gpu";
    assert!(refused["message"].as_str().unwrap().contains(reason), "{refused}");
    let created = client.post(pods, &pod("gpu")).ok();
    assert_eq!(created["spec"]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(created["spec"]["containers"][0]["resources"]["claims"], json!([{"name": "gpu"}]));
    assert_eq!(created["status"]["qosClass"], "Burstable");
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "none"}]}});
    client.patch(&format!("{pods}/a/status"), "merge", &status).expect_error(422, "Invalid");
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}});
    let patched = client.patch(&format!("{pods}/a/status"), "merge", &status).ok();
    assert_eq!(patched["status"]["resourceClaimStatuses"][0]["resourceClaimName"], "made");
}

/// Fields stored while a gate was enabled were dropped by the next write after it was disabled.
#[test]
fn disabled_gate_keeps_stored_fields() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"os": {"name": "linux"},
        "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"}}]}});
    const PLAIN: &str = "--disable-admission-plugins=ServiceAccount";
    let server = Server::start_in(&data, &[PLAIN, "--feature-gates=ContainerStopSignals=true"]);
    server.admin().post(pods, &pod).ok();
    server.stop();
    let server = Server::start_in(&data, &[PLAIN]);
    let mut client = server.admin();
    let labelled =
        client.patch(&format!("{pods}/a"), "merge", &json!({"metadata": {"labels": {"a": "b"}}})).ok();
    assert_eq!(labelled["spec"]["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
    let mut other_pod = pod;
    other_pod["metadata"]["name"] = json!("b");
    assert_eq!(client.post(pods, &other_pod).ok()["spec"]["containers"][0]["lifecycle"], json!(null));
}

/// Gates that were accepted and switched nothing.
#[test]
fn gates_of_the_server_have_their_effect() {
    let off = "--feature-gates=StorageVersionHash=false,WatchCacheInitializationPostStartHook=true,KubeletTracing=false";
    let hash = |client: &mut Client| {
        let resources = client.get("/api/v1").ok();
        let found =
            resources["resources"].as_array().unwrap().iter().find(|found| found["name"] == "configmaps");
        found.unwrap()["storageVersionHash"].clone()
    };
    let storage_readiness = "/livez/poststarthook/storage-readiness";
    let default_server = Server::with_flags(&["--engine=memory"]);
    let mut client = default_server.admin();
    assert_eq!(hash(&mut client), json!("qFsyl6wFWjQ="));
    assert_eq!(client.get(storage_readiness).status, 404);

    let server = Server::with_flags(&["--engine=memory", off]);
    let mut client = server.admin();
    assert_eq!(hash(&mut client), Value::Null);
    assert_eq!(client.get(storage_readiness).status, 200);
    let log = server.log();
    let warning = "feature gate KubeletTracing has no effect: it is about other components of a cluster";
    assert!(log.contains(warning) && !log.contains("StorageVersionHash has"), "{log}");

    let json = ["--engine=memory", "--logging-format=json", "--feature-gates=LoggingBetaOptions=false"];
    let directory = temp_directory();
    let refused = Server::try_start_in(&directory.path().join("data"), &json).err().expect("it is refused");
    assert!(refused.stderr.contains("see LoggingBetaOptions feature"), "{}", refused.stderr);
}
