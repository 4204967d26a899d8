//! The use of legacy tokens: verifiers report it, and a controller writes the date onto the Secret.

use pilothouse_apimachinery::time;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::object::Key;
use tokio::sync::mpsc;

use crate::limits::TOKEN_USES_WAITING;

/// The label with the date of the last use.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The label with the date since which the token is invalid.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

const DAY: u64 = 24 * 3_600;

/// A used token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTokenUse {
    /// The Secret of the token.
    pub secret: Key,
    /// The UID of the Secret.
    pub uid: String,
}

/// The sender of verifiers. Reports beyond the channel's capacity are dropped: the next request repeats them.
pub type LegacyUseSender = mpsc::Sender<LegacyTokenUse>;

/// The receiver of the controller.
pub type LegacyUseReceiver = mpsc::Receiver<LegacyTokenUse>;

/// A bounded channel for reports.
pub fn channel() -> (LegacyUseSender, LegacyUseReceiver) {
    mpsc::channel(TOKEN_USES_WAITING)
}

/// The UTC date of a time, in the format of the labels.
pub fn day(timestamp: Timestamp) -> String {
    let text = time::format_seconds(timestamp.unix_seconds());
    text.split('T').next().unwrap_or_default().to_owned()
}

/// Whether a text is a date.
pub fn is_day(text: &str) -> bool {
    text.len() == 10 && time::parse_seconds(&format!("{text}T00:00:00Z")).is_ok()
}

/// Whether a label names another date than today. Tomorrow counts as today, because clocks differ.
pub fn is_outdated(label: Option<&str>, now: Timestamp) -> bool {
    let tomorrow = now.plus(std::time::Duration::from_secs(DAY));
    label != Some(&day(now)) && label != Some(&day(tomorrow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_token_label_is_outdated_unless_today_or_tomorrow() {
        let noon = Timestamp((365 * DAY + DAY / 2) * 1_000_000);
        assert_eq!(day(noon), "1971-01-01");
        assert!(is_day("1971-01-01") && !is_day("1971-1-1") && !is_day("1971-13-01") && !is_day(""));
        for (label, expected) in [
            (None, true),
            (Some("1970-12-31"), true),
            (Some("1971-01-01"), false),
            (Some("1971-01-02"), false),
            (Some("x"), true),
        ] {
            assert_eq!(is_outdated(label, noon), expected, "{label:?}");
        }
    }
}
