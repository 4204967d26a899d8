//! Many objects, and large ones: neither command holds them all.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};

use serde_json::json;

use super::{MAPS, command, config_map, export, objects};
use crate::support::Server;
use crate::support::server::temp_directory;

const OBJECTS: usize = 5_000;
const OBJECT_BYTES: usize = 16 << 10;
/// What a command may take: less than the objects, which are more than 80 MB. A debug build begins with a third of it.
const MAX_MEMORY_KIB: u64 = 72 << 10;

/// The most memory that a process has used so far, in KiB; `None` if it has ended.
fn peak_memory_kib(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[test]
fn thousands_of_objects_pass_in_little_memory() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let directory = temp_directory();
    let path = directory.path().join("objects");
    let mut file = std::io::BufWriter::new(File::create(&path).unwrap());
    for number in 0..OBJECTS {
        let mut map = config_map(&format!("m-{number:04}"), &[]);
        map["data"]["text"] = json!("x".repeat(OBJECT_BYTES));
        writeln!(file, "{map}").unwrap();
    }
    drop(file);
    let (success, stderr) = super::import(&from, &path, &[]);
    assert!(success && stderr.contains("5000 objects created"), "{stderr}");

    // The export waits for its reader, so it can be looked at before its end.
    let mut child = command("export", &from, &["--resource=configmaps", "-n", "default"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut exported = Vec::new();
    stdout.by_ref().take((OBJECTS * OBJECT_BYTES) as u64 * 95 / 100).read_to_end(&mut exported).unwrap();
    let peak = peak_memory_kib(&child).expect("the export is not at its end");
    assert!(peak < MAX_MEMORY_KIB, "the export took {peak} KiB");
    stdout.read_to_end(&mut exported).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(exported.split(|byte| *byte == b'\n').count(), OBJECTS + 1);

    fs::write(&path, &exported).unwrap();
    drop(exported);
    let mut child =
        command("import", &into, &[path.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    // The mark only rises, so the last reading counts, whenever it is taken.
    let status = loop {
        peak = peak_memory_kib(&child).unwrap_or(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(status.success() && peak > 0 && peak < MAX_MEMORY_KIB, "{status}: the import took {peak} KiB");
    let list = into.admin().get(&format!("{MAPS}?limit=1")).ok();
    assert_eq!(list["metadata"]["remainingItemCount"], OBJECTS - 1);
}

#[test]
fn pages_of_large_objects_are_smaller() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    // Three times as many bytes as a page may have.
    for number in 0..30 {
        let mut map = config_map(&format!("large-{number:02}"), &[]);
        map["data"]["text"] = json!("x".repeat(900_000));
        client.post(MAPS, &map).ok();
    }
    let directory = temp_directory();
    let path = directory.path().join("export");
    export(&server, &path, &["--resource=configmaps", "-n", "default"]);
    assert_eq!(objects(&path).len(), 30);
}
