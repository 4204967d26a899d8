//! The bounds of OpenID Connect providers and their tokens.

use std::time::Duration;

/// Bytes of an OpenID Connect token: enough for some thousand groups.
pub const OIDC_TOKEN_BYTES: usize = 64 << 10;
/// Cached OpenID Connect tokens. A full cache drops expired entries, or else the half that expires first.
pub const OIDC_CACHED_TOKENS: usize = 4_096;
/// How long such a token is cached; the reference's value for all tokens.
pub const OIDC_TOKEN_CACHE_TTL: Duration = Duration::from_secs(10);
/// Bytes of a provider's document; a longer one is rejected, and the known keys stay valid.
pub const OIDC_DOCUMENT_BYTES: usize = 512 << 10;
/// How long a provider's document may take, including the connection.
pub const OIDC_DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys per provider; a token without a key ID is tried with all of them.
pub const OIDC_KEYS: usize = 128;
/// The maximum age of a provider's keys before they are fetched again, so that withdrawn keys become invalid.
pub const OIDC_KEYS_AGE: Duration = Duration::from_secs(600);
/// The pause after the first failure to fetch keys; doubled each time.
pub const OIDC_FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause; the reference's fixed value.
pub const OIDC_LAST_PAUSE: Duration = Duration::from_secs(10);
/// How often unknown tokens can cause a fetch in a burst.
pub const OIDC_REFETCHES: u32 = 3;
/// How often they can in the long run.
pub const OIDC_REFETCH_INTERVAL: Duration = Duration::from_secs(10);
/// How long a token waits for keys to be fetched.
pub const OIDC_WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Tokens that may wait for keys; further ones are refused.
pub const OIDC_WAITING: usize = 256;
/// Bytes of the response of an endpoint of distributed claims: enough for ten thousand groups, and verified in a millisecond.
pub const OIDC_CLAIM_BYTES: usize = 256 << 10;
/// How long a token waits for its distributed claims, with the keys of their issuer.
pub const OIDC_CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Distributed claims of one provider that are fetched at the same time.
pub const OIDC_CLAIM_CALLS: usize = 32;
/// Tokens that wait for that or are being worked on; further ones are refused.
pub const OIDC_CLAIM_WAITING: usize = 1_024;
/// Issuers of distributed claims whose keys are kept, besides the provider. Those that have verified nothing are dropped first.
pub const OIDC_CLAIM_ISSUERS: usize = 16;
/// Tokens of which is remembered that their distributed claims could not be fetched or verified. A full cache drops expired entries, or
/// else the half that expires first.
pub const OIDC_CACHED_FAILURES: usize = 4_096;
/// How long such a token is refused without asking again: as long as another one is accepted.
pub const OIDC_CLAIM_FAILURE_TTL: Duration = OIDC_TOKEN_CACHE_TTL;
