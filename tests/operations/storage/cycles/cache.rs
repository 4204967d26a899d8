//! A client that keeps a copy of a collection: it lists once, then watches from the last event, and lists again only after a 410.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use serde_json::Value;

use super::model::{RESOURCES, Stored, list};
use crate::support::Client;
use crate::support::compare::{revision, text};
use crate::support::wait::{Deadline, TIMEOUT};

/// The copy.
pub(super) struct Cache {
    resource: usize,
    pub(super) objects: BTreeMap<String, Stored>,
    last: u64,
    /// Events that were applied.
    pub(super) events: u64,
    /// Answers that its version has expired.
    pub(super) expired: u64,
}

/// Why a cache stopped to watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The last event was about the object that it was to wait for.
    Reached,
    /// The server is gone.
    Disconnected,
}

impl Cache {
    pub(super) fn new(resource: usize, client: &mut Client) -> Cache {
        let (objects, last) = list(client, resource);
        Cache { resource, objects, last, events: 0, expired: 0 }
    }

    /// Follows the collection until an event about this version of an object, or a later one.
    pub(super) fn run(&mut self, client: &mut Client, until: impl Fn(&str, &Stored) -> bool) -> Ended {
        loop {
            let query = format!("resourceVersion={}", self.last);
            let mut watch = match client.try_watch(RESOURCES[self.resource].collection, &query) {
                Ok(watch) => watch,
                // A response that refuses has the query in its text.
                Err(error) if !error.to_string().contains(&query) => return Ended::Disconnected,
                Err(error) => panic!("{error}"),
            };
            loop {
                match watch.attempt(Deadline::after(TIMEOUT)) {
                    Ok(Some(event)) if text(&event, "/type") == "ERROR" => {
                        assert_eq!(event["object"]["code"], 410, "{event}");
                        break;
                    }
                    Ok(Some(event)) => {
                        let (name, stored) = self.apply(&event);
                        if until(&name, &stored) {
                            return Ended::Reached;
                        }
                    }
                    Ok(None) => return Ended::Disconnected,
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        panic!("the watch is silent: {error}")
                    }
                    Err(_) => return Ended::Disconnected,
                }
            }
            self.expired += 1;
            (self.objects, self.last) = list(client, self.resource);
            if self.objects.iter().any(|(name, stored)| until(name, stored)) {
                return Ended::Reached;
            }
        }
    }

    /// Applies an event, which must fit what the copy has.
    fn apply(&mut self, event: &Value) -> (String, Stored) {
        let object = &event["object"];
        let (name, stored) = (text(object, "/metadata/name").to_owned(), Stored::read(object));
        let version = revision(object);
        assert!(version > self.last, "versions rise in a watch: {version} after {}: {event}", self.last);
        self.last = version;
        self.events += 1;
        let before = match text(event, "/type") {
            "DELETED" => {
                let before = self.objects.remove(&name);
                assert!(before.is_some(), "it was not there: {event}");
                return (name, stored);
            }
            _ => self.objects.insert(name.clone(), stored.clone()),
        };
        let is_new = text(event, "/type") == "ADDED";
        assert_eq!(before.is_none(), is_new, "{event} after {before:?}");
        (name, stored)
    }
}
