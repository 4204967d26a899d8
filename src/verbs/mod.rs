//! One file per verb. A verb gets a parsed request, works on values, sends messages to stores and returns a [`Reply`].
//! Nothing here knows HTTP.

pub mod admission;
pub mod aggregation;
pub mod apply;
pub mod bootstrap;
pub mod budget;
pub mod collection;
pub mod component_status;
pub mod connect;
pub mod conversion;
pub mod create;
pub mod delete;
pub mod engines;
pub mod forced;
pub mod get;
pub mod list;
pub mod load;
pub mod object;
mod ownership;
pub mod paging;
pub mod patch;
pub mod present;
mod proof;
pub mod record;
pub mod review;
pub mod rights;
pub mod services;
pub mod stores;
pub mod sub;
pub mod update;
pub mod watch;
mod ways;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::authenticator::Authenticator;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::clock::Clock;
use pilothouse_actors::feed::Feed;
use pilothouse_actors::identity::Identity;
use pilothouse_actors::object::{Key, Object};
use pilothouse_actors::permit::Permit;
use pilothouse_actors::session::LiveSessions;

use crate::api::catalog::resource::{Resource, Stored};
use crate::api::custom::Custom;
use crate::api::features::Terms;
use crate::api::form::Form;
use crate::api::kinds::{self, Kind, Writer};
use crate::api::media::{Encoding, PatchType};
use crate::api::ownership::Elsewhere;
use crate::api::parts::{self, Part};
use crate::api::query::Query;
use crate::api::schema::{Registry, time};
use crate::api::status::{self, GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::auth::rbac::Roles;
use crate::auth::service_account::issuer::Issuer;
use crate::limits::{CUT_WARNING_CHARS, REQUEST_NOTES, WARNING_CHARS, WARNINGS};
use crate::metrics::Metrics;

use self::admission::Chain;
use self::budget::Budget;
use self::conversion::Conversions;
use self::engines::Engines;
use self::forced::Forced;
use self::list::Listing;
use self::load::Load;
use self::record::Received;
use self::services::Services;
use self::stores::Stores;

/// What every verb may use. One per HTTP worker.
pub struct Backend {
    /// The schemas of all kinds.
    pub registry: Arc<Registry>,
    /// What the operator of this server has decided about objects.
    pub terms: Terms,
    /// The way to the stores.
    pub stores: Stores,
    /// What the cluster has to say about writes.
    pub admission: Chain,
    /// The time.
    pub clock: Clock,
    /// The addresses and ports that services get.
    pub services: Rc<Services>,
    /// How objects are checked.
    pub engines: Engines,
    /// The way to remove what cannot be read, where that is allowed.
    pub forced: Option<Forced>,
    /// What makes the tokens of service accounts.
    pub tokens: Arc<Issuer>,
    /// How much the lists in flight hold.
    pub lists: Budget,
    /// What is known of what requests will cost.
    pub load: Arc<Load>,
    /// Says whose a token is that somebody else was shown.
    pub authenticator: Addr<Authenticator>,
    /// Says who may do what, where a verb has to know more than whether it may run.
    pub authorizer: Addr<Authorizer>,
    /// Who has which role.
    pub roles: Arc<Roles>,
    /// Who asks the webhooks that turn custom objects into other versions.
    pub conversions: Rc<Conversions>,
    /// Whether selectors count when somebody asks what they may do.
    pub judges_selectors: bool,
    /// What is served under the name of a resource by now: those of custom kinds are replaced when their definition changes, and go
    /// with it.
    pub served_now: ServedNow,
}

/// Says what is served under the name of a resource now.
pub type ServedNow = Rc<dyn Fn(&Arc<Resource>) -> Option<Arc<Resource>>>;

/// What watches need besides. One per HTTP worker.
pub struct Watching {
    /// Wakes the watches of this worker.
    pub broadcaster: Addr<Broadcaster>,
    /// Counts the watches of this server.
    pub live_sessions: LiveSessions,
    /// How long a watch lasts at least if the client names no end.
    pub min_request_timeout: Duration,
    /// Whether a watch may begin with what is there and say when that is done.
    pub initial_events: bool,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Backend {
    /// The schemas of a resource and of all that is built in.
    pub fn registry_of<'a>(&'a self, resource: &'a Resource) -> &'a Registry {
        resource.custom.as_ref().map_or(&*self.registry, |custom| &*custom.registry)
    }

    /// The present moment as objects carry it.
    fn now(&self) -> String {
        time::format_seconds(self.clock.now().unix_seconds())
    }
}

/// One request for a resource, taken apart.
pub struct Call<'a> {
    /// What it is for.
    pub resource: &'a Arc<Resource>,
    /// Where its objects are.
    pub stored: &'a Stored,
    /// The namespace of the path, empty for none.
    pub namespace: &'a str,
    /// The name of the path, empty for a collection.
    pub name: &'a str,
    /// The sub-resource, empty for the resource itself.
    pub subresource: &'a str,
    /// The parameters.
    pub query: &'a Query<'a>,
    /// The body.
    pub body: Bytes,
    /// The encoding of the body.
    pub encoding: Encoding,
    /// The language of the body, if it is a patch.
    pub patch: Option<PatchType>,
    /// How the answer shows objects.
    pub form: Form,
    /// Where warnings go.
    pub warnings: &'a Warnings,
    /// Who asks.
    pub user: &'a Identity,
    /// The program they ask with, as it calls itself.
    pub user_agent: &'a str,
    /// The place among the requests in flight: a copy travels in every message, so that a client that hangs up does
    /// not free it while a store still works for it.
    pub permit: Permit,
    /// What its objects are in other versions, where a webhook makes those.
    pub elsewhere: Elsewhere,
}

impl<'a> Call<'a> {
    /// A request that the server makes of itself, about one object or a part of it, without a body. It takes no place.
    pub fn own(
        resource: &'a Arc<Resource>,
        (namespace, name, subresource): (&'a str, &'a str, &'a str),
        (query, warnings): (&'a Query<'a>, &'a Warnings),
        (user, user_agent): (&'a Identity, &'a str),
    ) -> Result<Call<'a>> {
        Ok(Call {
            resource,
            stored: resource.stored.as_ref().ok_or_else(Status::no_such_resource)?,
            namespace,
            name,
            subresource,
            query,
            body: Bytes::new(),
            encoding: Encoding::Json,
            patch: None,
            form: Form::PLAIN,
            warnings,
            user,
            user_agent,
            permit: Permit::none(),
            elsewhere: Elsewhere::default(),
        })
    }
}

impl Call<'_> {
    /// How errors name what was asked for.
    pub fn of(&self) -> GroupResource<'_> {
        self.resource.name()
    }

    /// The key of an object with this name in the scope of the call.
    pub fn key(&self, name: &str) -> Key {
        if self.resource.namespaced { Key::namespaced(self.namespace, name) } else { Key::cluster(name) }
    }

    /// The version and kind of what the body says and the answer shows: those of the resource, unless the path names a part
    /// that looks different.
    pub fn shown_kind(&self) -> (&GroupVersion, &str) {
        match self.resource.subresource(self.subresource) {
            Some(sub) => (&sub.gv, &sub.kind),
            None => (&self.resource.gv, &self.resource.kind),
        }
    }

    /// What is known of the kind that the path shows, if that is a custom one.
    pub fn custom(&self) -> Option<&Custom> {
        let custom = self.resource.custom.as_deref();
        custom.filter(|_| *self.shown_kind().0 == self.resource.gv)
    }

    /// The part of the object that the path names, if it can be read and written.
    pub fn part(&self) -> Result<&Part> {
        let own = self.resource.custom.as_ref().filter(|_| self.subresource == "scale");
        let part = match own {
            Some(custom) => custom.scale.as_ref(),
            None => parts::of(self.subresource),
        };
        part.ok_or_else(Status::no_such_resource)
    }

    /// The rules of the kind. A kind that two groups serve is stored once, but each group asks for other things.
    pub fn kind(&self) -> Kind {
        Kind {
            rules: match self.resource.custom {
                Some(_) => &kinds::CUSTOM,
                None => kinds::rules(self.of().group, &self.resource.kind),
            },
            namespaced: self.resource.namespaced,
            has_status: self.resource.subresource("status").is_some(),
        }
    }

    /// Who writes, as the rules of kinds see them.
    pub fn writer(&self) -> Writer {
        Writer {
            name: self.user.name.clone(),
            uid: self.user.uid.clone(),
            groups: self.user.groups.clone(),
            extra: self.user.extra.iter().map(|(key, values)| (key.clone(), values.clone())).collect(),
        }
    }

    /// Tells the client what is dubious about its object. An attempt that is repeated says it once.
    pub fn warn(&self, warned: kinds::Warned) {
        warned.into_iter().for_each(|warning| self.warnings.add(warning));
    }

    /// 500 for an object whose record is damaged.
    pub fn unreadable(&self, object: &Object) -> Box<Status> {
        Status::unreadable(self.of(), object.key.as_str(), object.revision.0)
    }

    /// 422 for a body whose fields are wrong, in the name of its own kind.
    pub fn invalid_body(&self, name: &str, errors: &[crate::api::field::FieldError]) -> Box<Status> {
        let (gv, kind) = self.shown_kind();
        Status::invalid(&gv.group, kind, name, errors)
    }

    /// The same for an object that may say that it is of another kind: those of custom kinds are called what they say.
    pub fn invalid_object(
        &self,
        name: &str,
        object: &Value,
        errors: &[crate::api::field::FieldError],
    ) -> Box<Status> {
        let kind = object.str("kind");
        if self.resource.custom.is_none() || kind.is_empty() {
            return self.invalid(name, errors);
        }
        let group = object.str("apiVersion").split_once('/').map_or("", |(group, _)| group);
        Status::invalid(group, kind, name, errors)
    }

    /// Where messages say that an object is kept: those of custom kinds stand below their group.
    pub fn registered(&self, name: &str) -> String {
        let key = self.key(name);
        // What is only tried is tried before the storage puts its own folder in front.
        let root = if self.query.get("dryRun") == Some("All") { "" } else { "registry/" };
        match self.resource.custom {
            Some(_) => {
                format!("{root}{}/{}/{}", self.resource.gv.group, self.resource.plural, key.as_str())
            }
            None => format!("{root}{}/{}", status::storage_folder(self.of()), key.as_str()),
        }
    }

    /// 422 for an object whose fields are wrong, in the name of the group that it is stored in: events have two.
    pub fn invalid(&self, name: &str, errors: &[crate::api::field::FieldError]) -> Box<Status> {
        Status::invalid(&self.stored.version.group, &self.resource.kind, name, errors)
    }
}

/// What the client should know besides the answer, also when the answer is an error; and what a record of the request
/// would note.
#[derive(Debug, Default)]
pub struct Warnings {
    told: RefCell<Vec<String>>,
    notes: RefCell<BTreeMap<String, String>>,
    /// What a record holds of the body.
    pub received: Received,
}

impl Warnings {
    /// Adds one, up to a bound: a body with a thousand unknown fields shall not make a thousand headers.
    pub fn add(&self, text: impl Into<String>) {
        let mut all = self.told.borrow_mut();
        let text = text.into();
        if all.len() < WARNINGS && !all.contains(&text) {
            all.push(text);
        }
    }

    /// All of them, in order, as far as headers hold them.
    pub fn take(&self) -> Vec<String> {
        fitting(self.told.take())
    }

    /// Notes something for the record of the request, up to a bound. What was noted under a key first stays.
    pub fn note(&self, key: &str, text: String) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() < REQUEST_NOTES && !notes.contains_key(key) {
            notes.insert(key.to_owned(), text);
        }
    }

    /// What is noted, by key.
    pub fn notes(&self) -> BTreeMap<String, String> {
        self.notes.borrow().clone()
    }
}

/// Warnings as the reference fits them into headers: once all of them together are too long, each is cut, also those
/// before, and when even so they are too long the rest is left out.
fn fitting(mut all: Vec<String>) -> Vec<String> {
    let total: usize = all.iter().map(|text| text.chars().count()).sum();
    if total <= WARNING_CHARS {
        return all;
    }
    let mut written = 0;
    let mut room = |text: &mut String| {
        let cut = text.char_indices().nth(CUT_WARNING_CHARS).map_or(text.len(), |(at, _)| at);
        text.truncate(cut);
        let fits = written < WARNING_CHARS;
        written += text.chars().count();
        fits
    };
    all.retain_mut(|text| room(text));
    all
}

/// What a verb answers.
pub enum Reply {
    /// One object in the form of the call; for YAML in JSON, of which it is made.
    Object(u16, Bytes),
    /// A collection, encoded while it is sent.
    List(Listing),
    /// A Status that is no error.
    Status(Status),
    /// A stream of events in the form of the call.
    Watch(Feed),
}

/// What every verb returns.
pub type Answered = Result<Reply>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fit_into_headers() {
        let told = |lengths: &[usize]| {
            let warnings = Warnings::default();
            for (index, length) in lengths.iter().enumerate() {
                warnings.add(format!("{index:03}{}", "ü".repeat(length - 3)));
            }
            warnings.take().iter().map(|text| text.chars().count()).collect::<Vec<_>>()
        };
        assert_eq!(told(&[4000, 96]), [4000, 96]);
        assert_eq!(told(&[4000, 97]), [256, 97], "too long together: the first is cut too");
        assert_eq!(told(&[300; 40]), [256; 16], "what does not fit even so is left out");
    }
}
