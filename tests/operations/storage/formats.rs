//! A store of every earlier format opens in this version. `tests/operations/data` has one file of each; they are never changed.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::json;

use super::{MAPS, pilothouse};
use crate::support::Server;
use crate::support::compare::text;
use crate::support::server::temp_directory;

/// A store with a custom resource, a Secret, a ConfigMap that was changed twice, and one that was deleted.
struct Fixture {
    format: u64,
    packed: &'static [u8],
    /// The uid of the ConfigMap that was kept.
    uid: &'static str,
    /// The revision before the deletion of the other ConfigMap.
    before_deletion: u64,
}

const FORMAT_1: Fixture = Fixture {
    format: 1,
    packed: include_bytes!("../data/format-1.redb.gz"),
    uid: "af39d134-0adc-4092-a7f4-3c296fadc563",
    before_deletion: 11,
};
const FORMAT_2: Fixture = Fixture {
    format: 2,
    packed: include_bytes!("../data/format-2.redb.gz"),
    uid: "d10ee557-5155-4cd5-b626-0ba123f0f796",
    before_deletion: 12,
};

fn unpack(packed: &[u8], data: &Path) {
    let mut store = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut store).expect("the stored file");
    fs::create_dir_all(data).expect("the data directory");
    fs::write(data.join("pilothouse.redb"), store).expect("a copy of the store");
}

#[test]
fn store_of_format_1_opens_with_its_objects_and_its_history() {
    check_opens(&FORMAT_1);
}

#[test]
fn store_of_format_2_opens_with_its_objects_and_its_history() {
    check_opens(&FORMAT_2);
}

fn check_opens(fixture: &Fixture) {
    let directory = temp_directory();
    unpack(fixture.packed, directory.path());
    check_is_whole(fixture, &directory.path().join("pilothouse.redb"));
    check_backup_keeps_format(fixture, directory.path());
    for start in ["first", "second"] {
        let server = Server::start_on_file(directory.path(), &[]);
        let mut admin = server.admin();
        let kept = admin.get(&format!("{MAPS}/kept")).ok();
        assert_eq!(kept["data"], json!({"version": "3"}), "{start}");
        assert_eq!(kept["metadata"]["labels"], json!({"fleet": "north"}));
        assert_eq!(text(&kept, "/metadata/uid"), fixture.uid);
        assert_eq!(admin.get(&format!("{MAPS}/removed")).status, 404);
        let secret = admin.get("/api/v1/namespaces/default/secrets/cargo").ok();
        assert_eq!(secret["data"], json!({"manifest": "YW1iZXI="}));
        let anchor = admin.get("/apis/sea.example/v1/namespaces/default/anchors/bower").ok();
        assert_eq!(anchor["spec"], json!({"weight": 12}));

        let mut watch = admin.watch(MAPS, &format!("resourceVersion={}", fixture.before_deletion));
        let event = watch.next();
        assert_eq!((text(&event, "/type"), text(&event, "/object/metadata/name")), ("DELETED", "removed"));
        let upgraded = server.log().contains("upgrading the format of the store");
        assert_eq!(upgraded, start == "first", "{}", server.log());
        server.stop();
    }
}

/// `pilothouse check` does not upgrade a store.
fn check_is_whole(fixture: &Fixture, store: &Path) {
    let before = fs::read(store).expect("the store");
    let output = pilothouse(&["check", &store.to_string_lossy()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(&format!(": format {}, ", fixture.format)), "{text}");
    assert!(fs::read(store).expect("the store") == before, "it was changed");
}

/// Nor does a backup of a stopped server, so that the version which wrote the store can go on with it.
fn check_backup_keeps_format(fixture: &Fixture, data: &Path) {
    let (backup, data) = (data.join("backup"), data.to_string_lossy());
    let output = pilothouse(&["backup", "--to", &backup.to_string_lossy(), "--data-dir", &data]);
    assert!(output.status.success(), "{output:?}");
    let output = pilothouse(&["check", "--data-dir", &data]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!(": format {}, ", fixture.format)), "{text}");
}
