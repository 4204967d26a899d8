//! Elections that are played step by step, without objects.

use pilothouse_apimachinery::testing::object;

use super::election::OLDEST_EMULATION_VERSION;
use super::*;

const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
const OTHER_STRATEGY: &str = "example.com/fair";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A candidate that renewed itself just now and was never pinged.
fn candidate(emulation: &str, binary: &str) -> Candidate {
    let version = |text: &str| pilothouse_apimachinery::semver::Semver::parse(text).ok();
    Candidate {
        strategy: OLDEST_EMULATION_VERSION.to_owned(),
        emulation_version: version(emulation),
        binary_version: version(binary),
        created: NOW.minus(seconds(60)),
        renewed: Some(NOW),
        pinged: None,
    }
}

fn all<const N: usize>(candidates: [(&str, Candidate); N]) -> BTreeMap<String, Candidate> {
    candidates.into_iter().map(|(name, candidate)| (name.to_owned(), candidate)).collect()
}

fn led_by(holder: &str) -> LeaseState {
    LeaseState {
        holder: holder.to_owned(),
        strategy: OLDEST_EMULATION_VERSION.to_owned(),
        remaining: seconds(15),
    }
}

fn elected(leader: &str) -> Step {
    let (strategy, leader) = (OLDEST_EMULATION_VERSION.to_owned(), Some(leader.to_owned()));
    Step::Conclude(Election { strategy, leader })
}

fn ping(names: &[&str]) -> Step {
    Step::Ping(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn candidate_that_emulates_the_oldest_version_is_elected() {
    let leader = |candidates| next_step(None, &all(candidates), NOW);
    assert_eq!(
        leader([("a", candidate("1.20.0", "1.20.0")), ("b", candidate("1.19.0", "1.20.0"))]),
        elected("b")
    );
    let oldest_binary = [("a", candidate("1.19.0", "1.20.0")), ("b", candidate("1.19.0", "1.19.0"))];
    assert_eq!(leader(oldest_binary), elected("b"));
    let prerelease = [("a", candidate("1.19.0", "1.20.0")), ("b", candidate("1.19.0", "1.20.0-rc.1"))];
    assert_eq!(leader(prerelease), elected("b"));
    let mut elder = candidate("1.19.0", "1.19.0");
    elder.created = elder.created.minus(seconds(1));
    assert_eq!(leader([("a", candidate("1.19.0", "1.19.0")), ("b", elder)]), elected("b"));
    assert_eq!(
        leader([("b", candidate("1.19.0", "1.19.0")), ("a", candidate("1.19.0", "1.19.0"))]),
        elected("a")
    );
    assert!(matches!(next_step(None, &all([("a", candidate("", "1.2.0"))]), NOW), Step::Disagree(_)));
    assert_eq!(next_step(None, &all([]), NOW), Step::Wait);
}

#[test]
fn candidates_are_asked_before_an_election_and_the_silent_ones_are_left_out() {
    let mut candidates =
        all([("new", candidate("1.20.0", "1.20.0")), ("old", candidate("1.19.0", "1.19.0"))]);
    let later = NOW.plus(seconds(60));
    assert_eq!(next_step(None, &candidates, later), ping(&["new", "old"]));
    for candidate in candidates.values_mut() {
        candidate.pinged = Some(later);
    }
    assert_eq!(next_step(None, &candidates, later), Step::CheckAfter(seconds(5)));
    candidates.get_mut("new").unwrap().renewed = Some(later.plus(seconds(1)));
    assert_eq!(next_step(None, &candidates, later.plus(seconds(2))), Step::CheckAfter(seconds(3)));
    assert_eq!(next_step(None, &candidates, later.plus(seconds(5))), elected("new"));
    // It does not answer any more, and is not asked again until it renews itself.
    let much_later = later.plus(seconds(60));
    assert_eq!(next_step(None, &candidates, much_later), ping(&["new"]));
    assert!(matches!(next_step(Some(&led_by("new")), &candidates, much_later), Step::CheckAfter(_)));
    candidates.get_mut("old").unwrap().renewed = Some(much_later);
    assert_eq!(next_step(Some(&led_by("new")), &candidates, much_later), ping(&["new"]));
}

#[test]
fn candidates_that_never_answer_cause_no_writes() {
    let mut silent = candidate("1.20.0", "1.20.0");
    silent.pinged = Some(NOW.plus(seconds(1)));
    assert_eq!(next_step(None, &all([("a", silent.clone())]), NOW.plus(seconds(60))), Step::Wait);
    silent.renewed = None;
    assert_eq!(next_step(None, &all([("a", silent)]), NOW), Step::Wait, "it never was a candidate");
    let forgotten = candidate("1.20.0", "1.20.0");
    assert_eq!(next_step(None, &all([("a", forgotten)]), NOW.plus(seconds(1_801))), Step::Wait);
}

#[test]
fn led_lease_is_checked_when_it_ends_or_candidates_are_stale() {
    let candidates = all([("a", candidate("1.20.0", "1.20.0"))]);
    assert_eq!(next_step(Some(&led_by("a")), &candidates, NOW), Step::CheckAfter(seconds(15)));
    let almost_stale = NOW.plus(seconds(890));
    let after_last_microsecond = seconds(10) + Duration::from_micros(1);
    assert_eq!(
        next_step(Some(&led_by("a")), &candidates, almost_stale),
        Step::CheckAfter(after_last_microsecond)
    );
    assert_eq!(next_step(Some(&led_by("a")), &candidates, NOW.plus(seconds(901))), ping(&["a"]));
    let ended = LeaseState { remaining: Duration::ZERO, ..led_by("a") };
    assert_eq!(next_step(Some(&ended), &candidates, NOW), elected("a"));
    assert_eq!(next_step(Some(&led_by("")), &candidates, NOW), elected("a"));
    assert_eq!(next_step(Some(&led_by("b")), &candidates, NOW), elected("a"));
}

#[test]
fn strategy_is_that_of_the_newest_binary() {
    let mut other = candidate("1.20.0", "1.20.0");
    other.strategy = OTHER_STRATEGY.to_owned();
    let same_binary = all([("a", candidate("1.20.0", "1.20.0")), ("b", other.clone())]);
    let Step::Disagree(reason) = next_step(None, &same_binary, NOW) else { panic!() };
    assert_eq!(
        reason,
        "candidates \"a\", \"b\" at same binary version but received differing strategies OldestEmulationVersion, \
         example.com/fair"
    );
    assert!(matches!(next_step(Some(&led_by("a")), &same_binary, NOW), Step::Disagree(_)));
    let older = all([("a", candidate("1.19.0", "1.19.0")), ("b", other.clone())]);
    let left_to_others = Step::Conclude(Election { strategy: OTHER_STRATEGY.to_owned(), leader: None });
    assert_eq!(next_step(None, &older, NOW), left_to_others);
    let newer = all([("a", candidate("1.20.0", "1.21.0")), ("b", other.clone())]);
    assert_eq!(next_step(None, &newer, NOW), elected("b"), "whatever the best candidate asks for");
    // Once the lease says so, another controller elects.
    let state = LeaseState { strategy: OTHER_STRATEGY.to_owned(), remaining: Duration::ZERO, ..led_by("") };
    assert_eq!(next_step(Some(&state), &all([("b", other)]), NOW.plus(seconds(60))), Step::Wait);
}

fn lease(spec: &str) -> Value {
    object(&format!(r#"{{"spec":{spec}}}"#))
}

fn recorded(leader: &str, spec: &str, is_expired: bool) -> Option<Value> {
    let election =
        Election { strategy: OLDEST_EMULATION_VERSION.to_owned(), leader: Some(leader.to_owned()) };
    let mut lease = lease(spec);
    election.record(&mut lease, is_expired, NOW).then(|| lease.get("spec").unwrap().clone())
}

#[test]
fn lease_that_is_free_is_given_and_one_that_is_held_is_requested() {
    let given = recorded(
        "a",
        r#"{"holderIdentity":"","preferredHolder":"b","acquireTime":"x","leaseDurationSeconds":1}"#,
        false,
    );
    let expected = r#"{"holderIdentity":"a","leaseDurationSeconds":5,"renewTime":"2023-11-14T22:13:20.000000Z",
        "strategy":"OldestEmulationVersion"}"#;
    assert_eq!(given, Some(object(expected)));
    let held = r#"{"holderIdentity":"b","leaseDurationSeconds":15}"#;
    let requested = r#"{"holderIdentity":"b","leaseDurationSeconds":15,"strategy":"OldestEmulationVersion",
        "preferredHolder":"a"}"#;
    assert_eq!(recorded("a", held, false), Some(object(requested)));
    assert_eq!(recorded("a", requested, false), None);
    assert_eq!(recorded("a", held, true).unwrap().str("holderIdentity"), "a");
    let own = r#"{"holderIdentity":"a","strategy":"OldestEmulationVersion"}"#;
    assert_eq!((recorded("a", own, false), recorded("a", own, true)), (None, None));
}

#[test]
fn lease_lasts_from_its_last_change_as_this_server_saw_it() {
    let remaining = |spec: &str, unchanged_for| lease_state(&lease(spec), seconds(unchanged_for)).remaining;
    let renewed = r#"{"leaseDurationSeconds":15,"renewTime":"2001-01-01T00:00:00.000000Z"}"#;
    assert_eq!(remaining(renewed, 5), seconds(10), "whatever its time says");
    assert_eq!(remaining(renewed, 20), Duration::ZERO);
    assert_eq!(remaining(r#"{"leaseDurationSeconds":15}"#, 0), Duration::ZERO);
    assert_eq!(remaining(r#"{"renewTime":"2001-01-01T00:00:00.000000Z"}"#, 0), Duration::ZERO);
}

#[test]
fn candidate_is_read_from_its_object() {
    let text = br#"{"metadata":{"creationTimestamp":"1970-01-01T00:00:10Z"},"spec":{"leaseName":"l","binaryVersion":"1.20.0",
        "emulationVersion":"1.19.0","strategy":"OldestEmulationVersion","renewTime":"1970-01-01T00:01:00.500000Z","pingTime":null}}"#;
    let (lease, candidate) = Candidate::read(text).unwrap();
    assert_eq!((lease.as_str(), candidate.renewed), ("l", Some(Timestamp(60_500_000))));
    assert_eq!((candidate.created, candidate.pinged), (Timestamp::from_unix(10), None));
    assert!(candidate.emulation_version < candidate.binary_version);
}
