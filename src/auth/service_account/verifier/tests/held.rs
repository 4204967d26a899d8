//! Tokens whose objects other servers have changed, while the changes are held until they can be decrypted.

use std::collections::HashSet;

use pilothouse_actors::encryption::NoEncryption;
use pilothouse_actors::shared_log::memory::{Member, MemoryLog, SEALED};
use pilothouse_actors::shared_storage::{SharedLogs, start};
use pilothouse_types::object::UnreadableReason;

use super::*;

const ACCOUNTS: &str = "serviceaccounts";

/// One of the servers of a shared log.
struct Server {
    member: Arc<Member>,
    fixture: Fixture,
}

impl Server {
    async fn start(log: &MemoryLog) -> Server {
        let (member, clock) = (log.member(), Clock::manual(START));
        let options = Options { clock: clock.clone(), ..Options::default() };
        let logs = SharedLogs::single(Arc::clone(&member) as _);
        let stores = start(logs, Arc::new(NoEncryption), HashSet::new(), options).await.unwrap();
        Server { member, fixture: Fixture::over(stores, clock, true) }
    }

    async fn put(&self, plural: &str, key: &str) {
        self.put_with(plural, key, "").await;
    }

    /// Creates an object that a service has to decode.
    async fn put_sealed(&self, plural: &str, key: &str) {
        self.put_with(plural, key, SEALED).await;
    }

    async fn put_with(&self, plural: &str, key: &str, seal: &str) {
        let object = object("u");
        let stored = StoredDraft { bytes: Bytes::from(format!("{seal}{object}")), key_id: None };
        self.fixture.put_stored(plural, draft(key, &object), Some(stored)).await;
    }

    /// Waits until changes of a type are held.
    async fn wait_until_held(&self, plural: &str) {
        let name = TypeName::new(plural);
        let mut status = self.fixture.stores.follow_status_of(&name).unwrap();
        status.wait_for(|status| status.held.contains_key(&name)).await.unwrap();
    }
}

fn decode(key: &Key, value: &Bytes) -> std::result::Result<Draft, UnreadableReason> {
    let value = value.strip_prefix(SEALED.as_bytes()).unwrap_or(value);
    let object = serde_json::from_slice(value).map_err(|_| UnreadableReason::Damaged)?;
    Ok(draft(key.as_str(), &object))
}

/// Two servers, of which the first cannot decode what the second seals, and a token that the first has verified.
async fn servers_and_token() -> (Server, Server, String) {
    let log = MemoryLog::new(decode);
    let (one, other) = (Server::start(&log).await, Server::start(&log).await);
    other.put(ACCOUNTS, "n/sa").await;
    let token = one.fixture.token(|_| {});
    // It is cached at the second use, when the revision of the accounts is known before they are read.
    assert!(one.fixture.is_known(&token).await && one.fixture.is_known(&token).await);
    one.member.set_service_down(true);
    (one, other, token)
}

#[actix::test]
async fn token_is_not_accepted_from_the_cache_while_changes_of_its_objects_are_held() {
    let (one, other, token) = servers_and_token().await;
    other.put_sealed("configmaps", "n/c").await;
    one.wait_until_held("configmaps").await;
    let examine = || one.fixture.verifier.examine(&token, &[]);
    assert!(matches!(examine(), Answer::Now(Ok(Some(_)))), "no token depends on those");

    other.put_sealed(ACCOUNTS, "n/sealed").await;
    other.fixture.delete(ACCOUNTS, "n/sa").await;
    one.wait_until_held(ACCOUNTS).await;
    let Answer::Later(answer) = examine() else { panic!("its account may be deleted") };
    one.member.set_service_down(false);
    assert_eq!(answer.await.unwrap_err(), "serviceaccounts \"sa\" not found");
}

#[actix::test]
async fn token_is_refused_if_changes_of_its_objects_are_held_for_too_long() {
    let (one, other, token) = servers_and_token().await;
    other.put_sealed(ACCOUNTS, "n/sealed").await;
    one.wait_until_held(ACCOUNTS).await;
    let time_passes = async {
        for number in 0.. {
            // Not so far that the token expires.
            one.fixture.clock.advance(Duration::from_secs(u64::from(number < 300)));
            // Whatever the server learns makes it look at its clock.
            other.put("configmaps", &format!("n/{number}")).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let reason = tokio::select! {
        reason = one.fixture.refusal(&token) => reason,
        () = time_passes => unreachable!(),
    };
    assert!(reason.starts_with("the service account cannot be looked up: "), "{reason}");
    // As soon as it is known that the account is still there.
    one.member.set_service_down(false);
    assert!(one.fixture.is_known(&token).await);
}
