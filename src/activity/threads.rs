//! The threads of the process, as the kernel sees them.

use std::fs;

use pilothouse_types::activity::ThreadReport;

/// All threads, in the order of their numbers.
pub(super) fn list() -> Vec<ThreadReport> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    // A thread may end meanwhile.
    let stats = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let mut threads: Vec<ThreadReport> = stats.filter_map(|stat| parse(&stat)).collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

/// Parses a stat file of the kernel. The name may have spaces and parentheses in it.
fn parse(stat: &str) -> Option<ThreadReport> {
    let (id, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(ThreadReport {
        id: id.parse().ok()?,
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        ticks: ticks(11)?.saturating_add(ticks(12)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_file_with_parentheses_in_the_name_is_parsed() {
        let stat = "4242 (a (b) c) S 1 4242 4242 0 -1 4194304 2 0 0 0 17 5 0 0 20 0 9 0 100 0 0";
        let expected = ThreadReport { id: 4_242, name: "a (b) c".to_owned(), state: 'S', ticks: 22 };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!((parse(""), parse("1 (x) S 1")), (None, None));
    }

    #[test]
    fn own_thread_is_listed() {
        let runs = |thread: &ThreadReport| thread.state == 'R';
        let threads = list();
        assert!(threads.iter().any(runs), "{threads:?}");
    }
}
