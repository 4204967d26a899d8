//! The flags about recent events in memory.

use std::str::FromStr;

use clap::Args;

/// How many recent events are in memory, beside the bounds of their bytes and of their age. Whoever watches from an older revision is
/// served from the log (the engine redb). Where there is none, the events of the last 75 seconds stay in any case.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Storage")]
pub struct WatchCache {
    /// Number of recent events of each resource that stay in memory, at least 100; older ones are read from the log again, or without one
    /// leave memory after 75 seconds. Deprecated: by default, memory and age are the only bounds. kube-apiserver 1.33 ignores it.
    #[arg(long, value_parser = size, allow_negative_numbers = true, value_name = "N")]
    pub default_watch_cache_size: Option<usize>,
    /// The same for single resources, as resource[.group]#size; 0 means as few as possible. kube-apiserver 1.33 knows 0, which reads such
    /// resources from etcd, and ignores other numbers.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_name = "RESOURCE#N,...")]
    pub watch_cache_sizes: Vec<WatchCacheSize>,
}

/// A value of `--watch-cache-sizes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchCacheSize {
    /// The resource with its group, as stores are named.
    pub resource: String,
    /// How many events.
    pub events: usize,
}

impl FromStr for WatchCacheSize {
    type Err = String;

    /// The messages are the reference's.
    fn from_str(text: &str) -> Result<WatchCacheSize, String> {
        let parts: Vec<&str> = text.split('#').collect();
        let [resource, size] = parts.as_slice() else {
            return Err(format!("invalid value of watch cache size: {text}"));
        };
        let size: i64 = size.parse().map_err(|_| format!("invalid size of watch cache size: {text}"))?;
        let events = usize::try_from(size);
        let events = events.map_err(|_| format!("watch cache size cannot be negative: {text}"))?;
        Ok(WatchCacheSize { resource: (*resource).to_owned(), events })
    }
}

/// Parses the default size. As in the reference, a negative one is none.
fn size(text: &str) -> Result<usize, String> {
    let size: i64 = text.parse().map_err(|_| format!("\"{text}\" is not a number"))?;
    Ok(usize::try_from(size).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(flags: &[&str]) -> Result<WatchCache, String> {
        let config = Config::parse(["pilothouse"].iter().chain(flags));
        config.map(|config| config.watch_cache).map_err(|error| error.to_string())
    }

    #[test]
    fn watch_cache_sizes_name_resources_with_their_group() {
        let sizes = parse(&["--watch-cache-sizes=pods#0,leases.coordination.k8s.io#1000"]).unwrap();
        let size = |resource: &str, events| WatchCacheSize { resource: resource.to_owned(), events };
        assert_eq!(sizes.watch_cache_sizes, [size("pods", 0), size("leases.coordination.k8s.io", 1_000)]);
        assert_eq!(sizes.default_watch_cache_size, None);
        for (text, words) in [
            ("pods", "invalid value of watch cache size: pods"),
            ("pods#1#2", "invalid value of watch cache size: pods#1#2"),
            ("pods#many", "invalid size of watch cache size: pods#many"),
            ("pods#-1", "watch cache size cannot be negative: pods#-1"),
        ] {
            let error = parse(&[&format!("--watch-cache-sizes={text}")]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn default_watch_cache_size_is_any_number() {
        let size = |text: &str| parse(&[&format!("--default-watch-cache-size={text}")]);
        assert_eq!(size("1500").unwrap().default_watch_cache_size, Some(1_500));
        assert_eq!(size("-1").unwrap().default_watch_cache_size, Some(0));
        assert!(size("x").is_err());
    }
}
