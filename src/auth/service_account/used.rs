//! Which tokens that lie in Secrets are still used: verifiers say so, and somebody writes the day onto the Secret.

use pilothouse_actors::clock::Timestamp;
use pilothouse_actors::object::Key;
use tokio::sync::mpsc;

use crate::api::schema::time;
use crate::limits::TOKEN_USES_WAITING;

/// The label of a Secret with the day on which its token was last shown.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The label that takes the worth from a token in a Secret, with the day of that.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

const DAY: u64 = 24 * 3_600;

/// A token that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The Secret it lies in.
    pub secret: Key,
    /// Which Secret of that name.
    pub uid: String,
}

/// Where verifiers say which tokens were shown. What does not fit is lost: the next request says it again.
pub type Uses = mpsc::Sender<Used>;

/// Where somebody hears of that.
pub type UsesHeard = mpsc::Receiver<Used>;

/// Both ends.
pub fn channel() -> (Uses, UsesHeard) {
    mpsc::channel(TOKEN_USES_WAITING)
}

/// The day of a moment, in Greenwich, as labels say it.
pub fn day(at: Timestamp) -> String {
    let text = time::format_seconds(at.unix_seconds());
    text.split('T').next().unwrap_or_default().to_owned()
}

/// Whether this text is a day.
pub fn is_day(text: &str) -> bool {
    text.len() == 10 && time::parse_seconds(&format!("{text}T00:00:00Z")).is_ok()
}

/// Whether a label says that a token was last shown on another day than now. One of tomorrow counts as today: clocks lie apart.
pub fn is_outdated(label: Option<&str>, now: Timestamp) -> bool {
    let tomorrow = now.plus(std::time::Duration::from_secs(DAY));
    label != Some(&day(now)) && label != Some(&day(tomorrow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_told_apart() {
        let noon = Timestamp((365 * DAY + DAY / 2) * 1_000_000);
        assert_eq!(day(noon), "1971-01-01");
        assert!(is_day("1971-01-01") && !is_day("1971-1-1") && !is_day("1971-13-01") && !is_day(""));
        for (label, outdated) in [
            (None, true),
            (Some("1970-12-31"), true),
            (Some("1971-01-01"), false),
            (Some("1971-01-02"), false),
            (Some("x"), true),
        ] {
            assert_eq!(is_outdated(label, noon), outdated, "{label:?}");
        }
    }
}
