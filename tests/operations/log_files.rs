//! The log files of this host at /logs. The server is embedded, because only an embedder may name another directory.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pilothouse::config::Config;
use pilothouse::server::{Handle, Server as Embedded};
use tempfile::TempDir;

use crate::support::Client;
use crate::support::client::Response;
use crate::support::server::{Server, temp_directory};
use crate::support::wait::{Deadline, TIMEOUT, poll};
use crate::support::wire::Framing;

const CHANGED: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

fn admin(handle: &Handle) -> Client {
    let admin = handle.admin();
    Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)))
}

/// A server of a directory with some files, all changed at [`CHANGED`].
fn start() -> (Handle, TempDir) {
    let directory = temp_directory();
    let logs = directory.path().join("log");
    fs::create_dir_all(logs.join("pods")).unwrap();
    fs::create_dir_all(logs.join("site")).unwrap();
    fs::write(logs.join("syslog"), "0123456789").unwrap();
    fs::write(logs.join("a?b <c>.log"), "odd").unwrap();
    fs::write(logs.join("state.json"), "{}").unwrap();
    fs::write(logs.join("core"), b"\x7FELF\x02\x01\x01\0").unwrap();
    fs::write(logs.join("site/index.html"), "<p>index").unwrap();
    fs::write(directory.path().join("secret"), "secret").unwrap();
    symlink("../../secret", logs.join("pods/out")).unwrap();
    symlink("../syslog", logs.join("pods/in")).unwrap();
    for path in ["syslog", "pods", "site"] {
        set_changed(&logs.join(path));
    }
    let mut config = Config::ephemeral();
    config.log_files.enable_logs_handler = true;
    config.log_files.log_directory = Some(logs);
    (Embedded::start(config).unwrap(), directory)
}

fn set_changed(path: &Path) {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(path).unwrap().set_modified(changed).unwrap();
}

/// The status and the named headers, joined.
fn outline(response: &Response, headers: &[&str]) -> String {
    let headers = headers.iter().map(|name| response.header(name).unwrap_or("none"));
    std::iter::once(response.status.to_string().as_str()).chain(headers).collect::<Vec<_>>().join(" | ")
}

#[test]
fn directories_are_listed_and_files_served() {
    let (server, _directory) = start();
    let mut client = admin(&server);
    let listing = client.get("/logs/");
    assert_eq!(outline(&listing, &["content-type"]), "200 | text/html; charset=utf-8");
    assert_eq!(
        listing.text(),
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
         <a href=\"a%3Fb%20%3Cc%3E.log\">a?b &lt;c&gt;.log</a>\n<a href=\"core\">core</a>\n<a href=\"pods/\">pods/</a>\n\
         <a href=\"site/\">site/</a>\n<a href=\"state.json\">state.json</a>\n<a href=\"syslog\">syslog</a>\n</pre>\n"
    );
    let headers = ["content-type", "content-length", "accept-ranges", "last-modified"];
    let file = client.get("/logs/syslog");
    assert_eq!(file.text(), "0123456789");
    assert_eq!(outline(&file, &headers), format!("200 | text/plain; charset=utf-8 | 10 | bytes | {CHANGED}"));
    assert_eq!(client.get("/logs/a%3Fb%20%3Cc%3E.log").text(), "odd");
    assert_eq!(client.get("/logs/state.json").header("content-type"), Some("application/json"));
    assert_eq!(client.get("/logs/core").header("content-type"), Some("application/octet-stream"));
    let site = client.get("/logs/site/");
    assert_eq!(site.text(), "<p>index", "a page of its own instead of the listing");
    let guards = ["content-security-policy", "x-content-type-options"];
    assert_eq!(
        outline(&site, &guards),
        "200 | sandbox; default-src 'none' | nosniff",
        "its scripts do not run"
    );
    assert_eq!(client.get("/logs/pods/in").text(), "0123456789", "a link beneath the directory");
    for (path, location) in
        [("/logs", "logs/"), ("/logs/pods?a=b", "pods/?a=b"), ("/logs/site/index.html", "./")]
    {
        assert_eq!(outline(&client.get(path), &["location"]), format!("301 | {location}"), "{path}");
    }
    let paths = client.get("/").ok();
    assert!(paths["paths"].as_array().unwrap().iter().any(|path| path == "/logs"), "{paths}");
    assert!(client.get("/openapi/v3").ok()["paths"]["logs"].is_object());
    assert!(client.get("/openapi/v3/logs").ok()["paths"]["/logs/{logpath}"].is_object());
    assert!(client.get("/openapi/v2").ok()["paths"]["/logs/"].is_object());
}

#[test]
fn unserved_paths_methods_and_users_are_refused() {
    let (server, directory) = start();
    let mut client = admin(&server);
    for (path, expected) in [
        ("/logs/nothing", (404, "404 page not found\n")),
        ("/logs/syslog/more", (404, "404 page not found\n")),
        (&format!("/logs/{}", "a".repeat(300)), (404, "file not found\n")),
        ("/logs/pods/out", (404, "404 page not found\n")),
        ("/logs/../secret", (400, "invalid URL path\n")),
        ("/logs/%2e%2e/secret", (400, "invalid URL path\n")),
        ("/logs/pods/..%2f..%2f../secret", (400, "invalid URL path\n")),
        ("/logs/..%5csecret", (400, "invalid URL path\n")),
        ("/logs/syslog%00", (500, "500 Internal Server Error\n")),
        ("/logsx", (404, "404 page not found\n")),
    ] {
        let response = client.get(path);
        assert_eq!((response.status, response.text().as_str()), expected, "{path}");
    }
    let absolute = directory.path().join("secret");
    assert_eq!(client.get(&format!("/logs/{}", absolute.display())).status, 404);
    client.request("POST", "/logs/syslog", &[], b"").expect_error(405, "MethodNotAllowed");
    client.request("GET", "/logs/syslog", &[("Accept", "text/css")], b"").expect_error(406, "NotAcceptable");
    let mut anonymous = Client::new(server.address(), server.ca_pem(), None);
    for path in ["/logs", "/logs/", "/logs/syslog", "/logs/nothing"] {
        anonymous.get(path).expect_error(403, "Forbidden");
    }
}

#[test]
fn dates_and_ranges_select_what_is_sent() {
    let (server, _directory) = start();
    let mut client = admin(&server);
    let mut get = |path: &str, name: &str, value: &str| client.request("GET", path, &[(name, value)], b"");
    for path in ["/logs/syslog", "/logs/pods/"] {
        let response = get(path, "If-Modified-Since", CHANGED);
        assert_eq!(outline(&response, &["last-modified"]), format!("304 | {CHANGED}"));
        assert!(response.body.is_empty());
    }
    assert_eq!(get("/logs/syslog", "If-Modified-Since", "Sun, 09 Sep 2001 01:46:39 GMT").status, 200);
    assert_eq!(get("/logs/syslog", "If-Unmodified-Since", "Sun, 09 Sep 2001 01:46:39 GMT").status, 412);
    for (range, content, body) in [
        ("bytes=2-4", "bytes 2-4/10", "234"),
        ("bytes=-3", "bytes 7-9/10", "789"),
        ("bytes=9-", "bytes 9-9/10", "9"),
    ] {
        let response = get("/logs/syslog", "Range", range);
        assert_eq!(outline(&response, &["content-range"]), format!("206 | {content}"));
        assert_eq!(response.text(), body);
    }
    let response = get("/logs/syslog", "Range", "bytes=10-");
    assert_eq!(outline(&response, &["content-range", "last-modified"]), "416 | bytes */10 | none");
    assert_eq!(response.text(), "invalid range: failed to overlap\n");
    assert_eq!(get("/logs/syslog", "Range", "lines=1").text(), "invalid range\n");
    let response = get("/logs/syslog", "Range", "bytes=0-1,5-6");
    let media = response.header("content-type").unwrap_or_default().to_owned();
    let boundary = media.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, text: &str| {
        format!(
            "--{boundary}\r\nContent-Range: bytes {range}/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}\r\n"
        )
    };
    assert_eq!(response.text(), format!("{}{}--{boundary}--\r\n", part("0-1", "01"), part("5-6", "56")));
}

#[test]
fn large_file_is_sent_as_the_client_reads() {
    const BYTES: usize = 64 << 20;
    let (server, directory) = start();
    File::create(directory.path().join("log/large")).unwrap().set_len(BYTES as u64).unwrap();
    let mut client = admin(&server);
    let reserved = |client: &mut Client| {
        let page = client.get("/metrics").text();
        let series = r#"pilothouse_memory_reserved_bytes{budget="lists"} "#;
        let value = page.lines().find_map(|line| line.strip_prefix(series)).expect("the budget of lists");
        value.parse::<usize>().expect("a number")
    };
    let before = reserved(&mut client);
    let mut connection = client.raw();
    connection.send(format!("{}\r\n", client.head("GET", "/logs/large", &[])).as_bytes()).unwrap();
    let deadline = Deadline::after(TIMEOUT);
    let head = connection.head(deadline).unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, Some("67108864")));
    // The client does not read: two pieces are accounted for, and not the file.
    assert_eq!(reserved(&mut client), before + (128 << 10));
    let body = connection.body(Framing::Length(BYTES), deadline).unwrap();
    assert_eq!((body.len(), body.iter().any(|byte| *byte != 0)), (BYTES, false));
    assert!(
        poll(TIMEOUT, || (reserved(&mut client) == before).then_some(())).is_some(),
        "the pieces are given back"
    );
}

#[test]
fn logs_are_unknown_without_the_flag() {
    let server = Server::start();
    let mut admin = server.admin();
    for path in ["/logs", "/logs/", "/logs/syslog"] {
        let response = admin.get(path);
        assert_eq!((response.status, response.text().as_str()), (404, "404 page not found\n"), "{path}");
    }
    assert!(!admin.get("/").text().contains("/logs"));
    assert!(admin.get("/openapi/v3").ok()["paths"]["logs"].is_null());
}
