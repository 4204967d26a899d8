//! The flags about coordinated leader election.

use std::time::Duration;

use clap::Args;

use super::values::go_duration;

/// The least duration of a lease, whose unit is the second.
const MIN_LEASE_DURATION: Duration = Duration::from_secs(1);

/// The lease by which API servers agree which of them elects the leaders of other components, with the gate CoordinatedLeaderElection.
/// Flags of later releases than 1.33.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Coordinated leader election")]
pub struct CoordinatedLeadership {
    /// With the gate CoordinatedLeaderElection: how long servers on the same etcd wait for a renewal of the lease
    /// leader-election-controller before another one takes over.
    #[arg(long, default_value = "15s", value_parser = go_duration, value_name = "DURATION")]
    pub coordinated_leadership_lease_duration: Duration,
    /// How long the server that holds this lease goes on if it cannot renew it. A server alone with its file renews it as often.
    #[arg(long, default_value = "10s", value_parser = go_duration, value_name = "DURATION")]
    pub coordinated_leadership_renew_deadline: Duration,
    /// How often servers on the same etcd try to get or renew this lease.
    #[arg(long, default_value = "2s", value_parser = go_duration, value_name = "DURATION")]
    pub coordinated_leadership_retry_period: Duration,
}

impl CoordinatedLeadership {
    /// Checks the flags: a server must have stopped before another one begins, and must have tried to renew before it stops. The bounds
    /// are those of client-go.
    pub(super) fn validate(&self) -> Result<(), String> {
        let (duration, deadline, period) = (
            self.coordinated_leadership_lease_duration,
            self.coordinated_leadership_renew_deadline,
            self.coordinated_leadership_retry_period,
        );
        if duration < MIN_LEASE_DURATION {
            return Err("--coordinated-leadership-lease-duration must be at least one second".to_owned());
        }
        if duration <= deadline {
            return Err(
                "--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"
                    .to_owned(),
            );
        }
        if period.is_zero() {
            return Err("--coordinated-leadership-retry-period must be greater than zero".to_owned());
        }
        if deadline <= period + period / 5 {
            return Err("--coordinated-leadership-renew-deadline must be greater than 1.2 times \
                        --coordinated-leadership-retry-period"
                .to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn durations_of_coordinated_leadership_must_leave_time_for_a_handover() {
        let validate = |flags: [&str; 3]| {
            let names = ["lease-duration", "renew-deadline", "retry-period"];
            let flags = names.iter().zip(flags);
            let flags = flags.map(|(name, value)| format!("--coordinated-leadership-{name}={value}"));
            let config = Config::parse(["pilothouse".to_owned()].into_iter().chain(flags)).unwrap();
            config.validate().map_err(|error| error.to_string())
        };
        assert_eq!(validate(["15s", "10s", "2s"]), Ok(()));
        assert_eq!(validate(["2s", "1300ms", "1s"]), Ok(()));
        for (flags, words) in [
            (["500ms", "300ms", "100ms"], "at least one second"),
            (
                ["10s", "10s", "2s"],
                "lease-duration must be greater than --coordinated-leadership-renew-deadline",
            ),
            (["15s", "10s", "0s"], "retry-period must be greater than zero"),
            (["15s", "6s", "5s"], "renew-deadline must be greater than 1.2 times"),
        ] {
            assert!(validate(flags).unwrap_err().contains(words), "{flags:?}");
        }
    }
}
