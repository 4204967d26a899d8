//! A file system of its own for a store: it can be full, stand still, or lose the space below it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::server::temp_directory;

/// A file system in a file, unmounted on drop. Mounting needs root, as in most CI machines.
pub(super) struct SmallDisk {
    directory: TempDir,
    /// Whether the file of the file system is on a file system in memory that may be too small for it.
    is_thin: bool,
}

impl SmallDisk {
    /// A file system of this size.
    pub(super) fn mount(bytes: u64) -> SmallDisk {
        let disk = SmallDisk { directory: temp_directory(), is_thin: false };
        disk.make(bytes);
        disk
    }

    /// A file system of this size for which there is less space: writes that find none fail, as on a volume that promises more than
    /// there is.
    pub(super) fn mount_thin(bytes: u64, space: u64) -> SmallDisk {
        let disk = SmallDisk { directory: temp_directory(), is_thin: true };
        fs::create_dir(disk.below()).expect("a mount point");
        run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={space}"), "tmpfs", &disk.below().to_string_lossy()],
        );
        disk.make(bytes);
        disk
    }

    fn make(&self, bytes: u64) {
        File::create(self.image()).and_then(|file| file.set_len(bytes)).expect("an image");
        fs::create_dir(self.path()).expect("a mount point");
        run("mkfs.ext4", &["-q", "-m", "0", &self.image().to_string_lossy()]);
        self.mount_image();
    }

    fn mount_image(&self) {
        run("mount", &["-o", "loop", &self.image().to_string_lossy(), &self.path().to_string_lossy()]);
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    /// A path on the disk that holds its file.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where its file is.
    fn below(&self) -> PathBuf {
        self.directory.path().join("below")
    }

    fn image(&self) -> PathBuf {
        if self.is_thin { self.below().join("image") } else { self.directory.path().join("image") }
    }

    /// Uses up all space that is left, by another program as it were.
    pub(super) fn fill(&self) -> PathBuf {
        fill(self.path().join("foreign"))
    }

    /// Takes the space from below the file system, which still takes itself for large enough.
    pub(super) fn fill_below(&self) {
        fill(self.below().join("foreign"));
    }

    /// Gives that space back, and mounts the file system again as after a repair.
    pub(super) fn repair(&self) {
        fs::remove_file(self.below().join("foreign")).expect("the foreign file");
        run("umount", &[&self.path().to_string_lossy()]);
        self.mount_image();
    }

    /// Lets everybody who writes or syncs wait, until the returned value is dropped.
    pub(super) fn freeze(&self) -> Frozen {
        // The shell thaws it also if the test is killed: nobody could end those who wait.
        let script = "fsfreeze --freeze \"$0\" && echo frozen && cat >/dev/null; fsfreeze --unfreeze \"$0\"";
        let mut shell = Command::new("sh")
            .args(["-c", script, &self.path().to_string_lossy()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = [0; 7];
        let read = std::io::Read::read_exact(shell.stdout.as_mut().expect("stdout"), &mut line);
        let frozen = Frozen(shell);
        assert!(read.is_ok() && &line == b"frozen\n", "fsfreeze failed; this test needs root");
        frozen
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["--lazy", &self.path().to_string_lossy()]);
        if self.is_thin {
            run("umount", &["--lazy", &self.below().to_string_lossy()]);
        }
    }
}

/// A file system that stands still.
pub(super) struct Frozen(Child);

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Writes a file until there is no space left.
fn fill(path: PathBuf) -> PathBuf {
    let mut file = File::create(&path).expect("a file");
    let mut block = vec![7; 1 << 20];
    while !block.is_empty() {
        if file.write_all(&block).is_err() {
            block.truncate(block.len() / 2);
        }
    }
    path
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; this test needs to mount a disk"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {error}; this test needs root to mount a disk"
    );
}
