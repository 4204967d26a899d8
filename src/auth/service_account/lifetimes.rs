//! The lifetimes of new tokens: what the flags say, and what an external signer allows.

use std::time::Duration;

use crate::limits::{EXTENDED_TOKEN_LIFETIME, POD_TOKEN_LIFETIME};

/// The lifetimes of new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The maximum; 0 for no limit.
    pub max_seconds: i64,
    /// That of extended tokens of pods.
    pub extended_seconds: i64,
}

impl Lifetimes {
    /// With a key of this server. `requested`: the maximum of the flag; zero for none.
    pub fn own(requested: Duration) -> Lifetimes {
        Lifetimes { max_seconds: seconds(requested), extended_seconds: seconds(EXTENDED_TOKEN_LIFETIME) }
    }

    /// With an external signer, whose maximum the flag may only reduce.
    pub fn of_signer(requested: Duration, supported: Duration) -> Result<Lifetimes, String> {
        if requested > supported {
            return Err(format!(
                "service-account-max-token-expiration cannot be set longer than the token expiration supported by \
                 service-account-signing-endpoint: {} > {}",
                duration_text(requested),
                duration_text(supported)
            ));
        }
        let max = if requested.is_zero() { supported } else { requested };
        let extended = supported.min(EXTENDED_TOKEN_LIFETIME);
        Ok(Lifetimes { max_seconds: seconds(max), extended_seconds: seconds(extended) })
    }
}

/// Warns if the tokens of pods cannot be extended as the flag says.
pub fn warn(extends: bool, supported: Duration) {
    if !extends {
        return;
    }
    let max_lifetime = duration_text(supported);
    if supported < POD_TOKEN_LIFETIME {
        tracing::warn!(
            %max_lifetime,
            "--service-account-extend-token-expiration has no effect: the tokens of pods are recognized by a lifetime of {} seconds, \
             more than the external signer supports",
            POD_TOKEN_LIFETIME.as_secs()
        );
    } else if supported < EXTENDED_TOKEN_LIFETIME {
        tracing::warn!(
            %max_lifetime,
            "--service-account-extend-token-expiration extends the tokens of pods only to what the external signer supports"
        );
    }
}

fn seconds(lifetime: Duration) -> i64 {
    i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)
}

/// Whole seconds in Go's format, such as `24h0m0s`.
fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const YEAR: i64 = 31_536_000;

    #[test]
    fn external_signer_bounds_lifetimes() {
        let own = |max_seconds| Lifetimes { max_seconds, extended_seconds: YEAR };
        assert_eq!(Lifetimes::own(Duration::ZERO), own(0));
        assert_eq!(Lifetimes::own(HOUR), own(3_600));
        for (requested, supported, max_seconds, extended_seconds) in [
            (Duration::ZERO, HOUR, 3_600, 3_600),
            (HOUR, HOUR * 24, 3_600, 86_400),
            (HOUR * 24, HOUR * 24, 86_400, 86_400),
            (Duration::ZERO, HOUR * 10_000, 36_000_000, YEAR),
        ] {
            let lifetimes = Lifetimes::of_signer(requested, supported);
            assert_eq!(
                lifetimes,
                Ok(Lifetimes { max_seconds, extended_seconds }),
                "{requested:?}, {supported:?}"
            );
        }
        let error = Lifetimes::of_signer(HOUR * 48, HOUR * 24).unwrap_err();
        assert!(error.ends_with("service-account-signing-endpoint: 48h0m0s > 24h0m0s"), "{error}");
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (seconds, expected) in
            [(0, "0s"), (59, "59s"), (600, "10m0s"), (3_661, "1h1m1s"), (86_400, "24h0m0s")]
        {
            assert_eq!(duration_text(Duration::from_secs(seconds)), expected);
        }
    }
}
