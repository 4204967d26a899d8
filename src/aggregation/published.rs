//! What the servers of APIServices publish about themselves: discovery and OpenAPI.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_api::aggregation::discovered::DiscoveredVersion;
use pilothouse_api::openapi::merged::ServedSpec;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::memory::{OutOfMemory, Reservation};

/// The discovery and OpenAPI documents of the server of an APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedDocuments {
    /// Its discovery document.
    pub discovery: Discovery,
    /// The list of its OpenAPI v3 documents.
    pub openapi_v3: DocumentIndex,
    /// The part of its OpenAPI v2 document about this version.
    pub openapi_v2: Description,
}

/// A discovery document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// Its content about this version, and whether it is fresh.
    pub version: Option<Arc<DiscoveredVersion>>,
    /// The size of the document.
    pub bytes: usize,
    /// Its ETag, for the next request.
    pub etag: String,
}

/// A list of OpenAPI v3 documents. They are not kept: who asks for one is connected to the server that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentIndex {
    /// Path by name.
    pub paths: BTreeMap<String, String>,
    /// The size of the list.
    pub bytes: usize,
    /// Its ETag, for the next request.
    pub etag: String,
}

impl PublishedDocuments {
    /// The size of what no reservation counts.
    pub(super) fn size(&self) -> usize {
        self.discovery.bytes + self.openapi_v3.bytes
    }

    /// Drops parts until at most `limit` bytes are left. OpenAPI goes first and discovery last: without discovery no namespace could be
    /// deleted. The tag of the list stays, so that a list that does not fit is not fetched again and again.
    pub(super) fn truncate_to(mut self, limit: usize, name: &str) -> PublishedDocuments {
        type Clear = fn(&mut PublishedDocuments);
        let parts: [(&str, Clear); 2] = [
            ("OpenAPI v3", |documents| {
                (documents.openapi_v3.paths, documents.openapi_v3.bytes) = (BTreeMap::new(), 0);
            }),
            ("discovery", |documents| documents.discovery = Discovery::default()),
        ];
        for (document, clear) in parts {
            if self.size() <= limit {
                break;
            }
            tracing::warn!(
                name,
                document,
                "the discovery or OpenAPI document of an aggregated API server is too large and is not cached"
            );
            clear(&mut self);
        }
        self
    }
}

/// The part of an OpenAPI v2 document about one version.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The paths and definitions.
    pub content: Arc<ServedSpec>,
    /// The digest of the whole document and the name of the version.
    pub digest: Digest,
    /// Its ETag, for the next request.
    pub etag: String,
    /// The memory of the content, as long as anybody has it.
    _memory: Option<Arc<Reservation>>,
}

/// What tells a document from others.
#[derive(Clone, Debug)]
pub struct DocumentIdentity {
    /// The digest of the whole document and the name of the version.
    pub digest: Digest,
    /// Its ETag; empty if absent.
    pub etag: String,
}

/// Identifies the content of a document.
pub type Digest = [u8; DIGEST_BYTES];
const DIGEST_BYTES: usize = 32;

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Description {}

impl Description {
    /// Reads what a document says about a version. `reservation` counts the text; in the end it counts what is kept. `None`: the
    /// document is invalid. Takes seconds for the largest document.
    pub fn read(
        text: Vec<u8>,
        gv: &GroupVersion,
        identity: DocumentIdentity,
        previous: &Description,
        mut reservation: Reservation,
    ) -> Result<Option<Description>, OutOfMemory> {
        let DocumentIdentity { digest, etag } = identity;
        if digest == previous.digest {
            return Ok(Some(Description { etag, ..previous.clone() }));
        }
        reservation.set(text.capacity() + ServedSpec::reading_bytes(&text))?;
        let Some(content) = ServedSpec::read(&text, &gv.group, &gv.version) else { return Ok(None) };
        drop(text);
        // Fewer than before: a part of the text, without what reading it took.
        reservation.charge_to(content.bytes());
        Ok(Some(Description {
            content: Arc::new(content),
            digest,
            etag,
            _memory: Some(Arc::new(reservation)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::aggregation::discovered::STALE;
    use pilothouse_types::memory::MemoryBudget;

    use super::*;

    const DOCUMENT: &[u8] = br#"{"paths":{"/apis/g/v1/things":{"get":{}},"/apis/g/v2/things":{"get":{}}}}"#;

    fn read(
        text: &[u8],
        previous: &Description,
        budget: &MemoryBudget,
    ) -> Result<Option<Description>, OutOfMemory> {
        let reservation = budget.take(text.len())?;
        let identity = DocumentIdentity {
            digest: [u8::try_from(text.len()).unwrap(); DIGEST_BYTES],
            etag: "tag".to_owned(),
        };
        Description::read(text.to_vec(), &GroupVersion::new("g", "v1"), identity, previous, reservation)
    }

    #[test]
    fn published_documents_over_limit_drop_openapi_first() {
        let documents = PublishedDocuments {
            discovery: Discovery {
                version: Some(Arc::new(DiscoveredVersion::bare("v1", STALE))),
                bytes: 100,
                etag: "e".to_owned(),
            },
            openapi_v3: DocumentIndex {
                paths: BTreeMap::from([("apis/g/v1".to_owned(), "/x".to_owned())]),
                bytes: 50,
                etag: "i".to_owned(),
            },
            openapi_v2: Description::default(),
        };
        assert_eq!(documents.clone().truncate_to(150, "v1.g"), documents);
        let discovery_only = documents.clone().truncate_to(149, "v1.g");
        assert!(discovery_only.discovery.version.is_some() && discovery_only.openapi_v3.paths.is_empty());
        assert_eq!(discovery_only.openapi_v3.etag, "i", "it is not fetched again");
        assert_eq!(documents.truncate_to(99, "v1.g").discovery, Discovery::default());
    }

    #[test]
    fn description_keeps_only_its_version_and_counts_it_as_long_as_it_lives() {
        let budget = MemoryBudget::standalone(1 << 20);
        let description = read(DOCUMENT, &Description::default(), &budget).unwrap().unwrap();
        assert_eq!(budget.bytes(), description.content.bytes());
        assert!(budget.bytes() > 0 && description.content.bytes() < 2 * DOCUMENT.len() + 512);
        let again = read(DOCUMENT, &description, &budget).unwrap().unwrap();
        assert!(Arc::ptr_eq(&again.content, &description.content), "it is unchanged");
        drop(description);
        assert!(budget.bytes() > 0);
        drop(again);
        assert_eq!(budget.bytes(), 0);
        assert_eq!(read(b"7", &Description::default(), &budget), Ok(None));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn description_that_has_no_memory_is_not_read() {
        let budget = MemoryBudget::standalone(DOCUMENT.len() + 10);
        let other = budget.take(1).unwrap();
        assert_eq!(read(DOCUMENT, &Description::default(), &budget), Err(OutOfMemory));
        assert_eq!(budget.bytes(), 1, "it holds nothing");
        drop(other);
        assert!(read(DOCUMENT, &Description::default(), &budget).unwrap().is_some());
    }
}
