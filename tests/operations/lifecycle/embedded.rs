//! Servers that run inside another process.

use super::*;

fn admin_client(handle: &Handle) -> Client {
    let admin = handle.admin();
    Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)))
}

fn start_two_servers() -> (Handle, Handle) {
    let start = || Embedded::start(Config::ephemeral()).expect("an embedded server");
    let (first_server, second_server) = (start(), start());
    assert_ne!(first_server.address(), second_server.address());
    admin_client(&first_server).post(MAPS, &map("mine")).ok();
    admin_client(&first_server).get(&format!("{MAPS}/mine")).ok();
    admin_client(&second_server).get(&format!("{MAPS}/mine")).expect_error(404, "NotFound");
    (first_server, second_server)
}

#[test]
fn several_embedded_servers_run_in_one_process() {
    let (first_server, second_server) = start_two_servers();
    let stopped_address = first_server.address();
    assert_eq!(first_server.stop(), Exit::Stopped);
    assert!(std::net::TcpStream::connect(stopped_address).is_err(), "nobody listens any more");
    admin_client(&second_server).get(MAPS).ok();
    assert_eq!(second_server.stop(), Exit::Stopped);
}

#[tokio::test]
async fn embedded_server_starts_inside_tokio_runtime() {
    let server = Embedded::start_async(Config::ephemeral()).await.expect("an embedded server");
    let mut client = admin_client(&server);
    let namespaces = tokio::task::spawn_blocking(move || client.get("/api/v1/namespaces").ok());
    assert_eq!(text(&namespaces.await.expect("an answer"), "/kind"), "NamespaceList");
    assert_eq!(server.stop_async().await, Exit::Stopped);
    // The blocking start works inside a runtime, too.
    let (first_server, second_server) = start_two_servers();
    drop(first_server);
    assert_eq!(second_server.stop_async().await, Exit::Stopped);
}
