//! `--memory-limit`: a number of bytes, or the limit of the process's control group.

use std::fs;
use std::path::Path;

use super::values::byte_quantity;
use crate::limits::CGROUP_PERCENT;

/// How much memory the server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The limit of the control group of the process.
    Cgroup,
    /// No limit.
    None,
    /// This many bytes.
    Bytes(usize),
}

impl MemoryLimit {
    /// Parses `auto`, `none`, or a quantity such as `512Mi`.
    pub fn parse(text: &str) -> Result<MemoryLimit, String> {
        match text {
            "auto" => return Ok(MemoryLimit::Cgroup),
            "none" | "0" => return Ok(MemoryLimit::None),
            _ => {}
        }
        let bytes = byte_quantity(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
        bytes
            .filter(|bytes| *bytes > 0)
            .map(MemoryLimit::Bytes)
            .ok_or_else(|| format!("\"{text}\" is not an amount of memory such as 512Mi"))
    }

    /// The limit in bytes, if there is one. Of a control group's limit a part is left for memory that the server does not account for.
    pub fn bytes(self) -> Option<usize> {
        match self {
            MemoryLimit::None => None,
            MemoryLimit::Bytes(bytes) => Some(bytes),
            MemoryLimit::Cgroup => cgroup_limit().map(|bytes| bytes / 100 * CGROUP_PERCENT),
        }
    }
}

/// The limit of the control group that this process is in, or of one above it; `None` without one.
fn cgroup_limit() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| group_limit(line, Path::new("/sys/fs/cgroup"))).min()
}

/// The limit of one line of `/proc/self/cgroup`: `0::/path` in the second version of control groups, `4:memory:/path` in the first.
fn group_limit(line: &str, root: &Path) -> Option<usize> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        "memory" => (root.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    // In a container the path may be the host's, which does not exist; the group's own files are at the root then.
    let group = root.join(group.trim_start_matches('/'));
    let ancestors = group.ancestors().take_while(|path| path.starts_with(&root));
    let read = |path: &Path| fs::read_to_string(path.join(file)).ok()?.trim().parse::<usize>().ok();
    // The first version represents "no limit" by a number near the maximum.
    ancestors.filter_map(read).filter(|bytes| *bytes < usize::MAX / 4).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_cgroup_memory_limit_applies() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("outer/inner");
        fs::create_dir_all(&group).unwrap();
        assert_eq!(group_limit("0::/outer/inner", root.path()), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("outer/memory.max"), "536870912\n").unwrap();
        assert_eq!(group_limit("0::/outer/inner", root.path()), Some(512 << 20));
        fs::write(group.join("memory.max"), "268435456\n").unwrap();
        assert_eq!(group_limit("0::/outer/inner", root.path()), Some(256 << 20));
        assert_eq!(group_limit("0::/of/the/host", root.path()), None);
        fs::write(root.path().join("memory.max"), "1073741824\n").unwrap();
        assert_eq!(group_limit("0::/of/the/host", root.path()), Some(1 << 30));
        assert_eq!(group_limit("5:cpu:/outer", root.path()), None);
        fs::create_dir_all(root.path().join("memory")).unwrap();
        fs::write(root.path().join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(group_limit("4:memory:/docker/x", root.path()), None, "this number means none");
    }

    #[test]
    fn memory_limit_parses_quantities_auto_and_none() {
        assert_eq!(MemoryLimit::parse("512Mi"), Ok(MemoryLimit::Bytes(512 << 20)));
        assert_eq!(
            (MemoryLimit::parse("none"), MemoryLimit::parse("auto")),
            (Ok(MemoryLimit::None), Ok(MemoryLimit::Cgroup))
        );
        assert!(["", "-1Mi", "much"].iter().all(|text| MemoryLimit::parse(text).is_err()));
    }
}
