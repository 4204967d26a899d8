//! etcd below the servers of these tests, if `PILOTHOUSE_TEST_ETCD` asks for it: `1` starts one for this test program, an address is
//! one that runs already. Each data directory has a prefix of its own, so a restarted server finds its objects.

use std::env;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::LazyLock;

use pilothouse_etcd::testing::{Cluster, Options};

/// The address of etcd, if the servers of these tests use it.
static ADDRESS: LazyLock<Option<String>> = LazyLock::new(|| {
    let setting = env::var("PILOTHOUSE_TEST_ETCD").ok().filter(|setting| !setting.is_empty())?;
    Some(if setting == "1" { start() } else { setting })
});

/// Starts etcd. It ends with this program.
fn start() -> String {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
        // What these tests stop is never the machine.
        let options = Options { flags: vec!["--unsafe-no-fsync".to_owned()], ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(Cluster::start(options))
    });
    CLUSTER.members.first().expect("a member").url()
}

/// Starts a cluster for one test.
pub fn cluster(members: usize) -> Cluster {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let options = Options { members, ..Options::default() };
    runtime.expect("a runtime").block_on(Cluster::start(options))
}

/// Whether the servers of these tests keep their objects in etcd, where others may write at the same time.
pub fn is_used() -> bool {
    ADDRESS.is_some()
}

/// Whether a flag of a test counts: the servers of these tests may not be in memory.
pub fn counts(flag: &OsStr) -> bool {
    !is_used() || flag != "--engine=memory"
}

/// The flags of the server with this data directory and these flags of the test. Objects that the test wants in memory are in etcd as
/// well; those that it wants in a file are not.
pub fn flags<A: AsRef<OsStr>>(data: &Path, arguments: &[A]) -> Vec<String> {
    let Some(address) = &*ADDRESS else { return Vec::new() };
    let decides = |flag: &A| {
        let flag = flag.as_ref().to_string_lossy();
        flag == "--engine=redb" || flag.starts_with("--etcd-servers=")
    };
    if arguments.iter().any(decides) {
        return Vec::new();
    }
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    vec![format!("--etcd-servers={address}"), format!("--etcd-prefix=/test/{:016x}", hasher.finish())]
}
