//! The parsed request that a verb carries out.

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::subresources::{self, SubresourceStrategy};
use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::managed_fields::ConvertedVersions;
use pilothouse_apimachinery::media::{Encoding, PatchType};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::status::{self, GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds::{self as kinds, Kind, UserInfo};
use pilothouse_types::clock::Moment;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::{Key, Object};

use super::Warnings;
use super::request_memory::MemoryPriority;
use super::work_limit::WorkLimit;

/// One parsed request for a resource.
pub struct Call<'a> {
    /// What the request is about.
    pub target: CallTarget<'a>,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The body of the request.
    pub body: CallBody,
    /// The form of the response.
    pub response_format: ResponseFormat,
    /// Collects warnings for the client.
    pub warnings: &'a Warnings,
    /// Who makes the request.
    pub requester: Requester<'a>,
    /// The limits within which the call is carried out.
    pub execution: Execution,
    /// Versions of its objects that a conversion webhook has made.
    pub converted_versions: ConvertedVersions,
}

/// The object, collection or subresource that a call is about.
#[derive(Clone, Copy)]
pub struct CallTarget<'a> {
    /// The requested resource.
    pub resource: &'a Arc<Resource>,
    /// The store of its objects.
    pub stored: &'a Stored,
    /// The namespace of the path, empty for none.
    pub namespace: &'a str,
    /// The name of the path, empty for a collection.
    pub name: &'a str,
    /// The subresource, empty for the resource itself.
    pub subresource: &'a str,
    /// The resource of the path, if another one serves it: bindings are a subresource of pods.
    pub alias: Option<&'a Arc<Resource>>,
}

/// The body of a call.
#[derive(Clone, Debug)]
pub struct CallBody {
    /// The bytes as they came, empty for none.
    pub bytes: Bytes,
    /// Their encoding.
    pub encoding: Encoding,
    /// The patch type, if it is a patch.
    pub patch: Option<PatchType>,
}

/// Who makes a call.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    /// The authenticated user.
    pub user: &'a Identity,
    /// Whether the request comes from a client or from the server itself.
    pub origin: Origin,
    /// The User-Agent header.
    pub user_agent: &'a str,
}

/// Where a request comes from. The user name does not tell: a user with impersonation rights can take the server's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, or a controller that acts as its service account.
    Client,
    /// The server itself, for objects that it needs to work. Webhooks and AlwaysDeny are not applied to it.
    Server,
}

/// The limits within which a call is carried out.
pub struct Execution {
    /// The permit of the request. Every message carries a copy, so that a client that disconnects does not free it while a store
    /// still works on the request.
    pub permit: Permit,
    /// When the client stops waiting; `None` for requests of the server itself.
    pub deadline: Option<Moment>,
    /// How much work the call may do on this thread.
    pub work: WorkLimit,
}

impl<'a> CallTarget<'a> {
    /// All objects of a resource, in this store. The resource itself may have none.
    pub fn new(resource: &'a Arc<Resource>, stored: &'a Stored) -> CallTarget<'a> {
        CallTarget { resource, stored, namespace: "", name: "", subresource: "", alias: None }
    }

    /// All objects of a stored resource.
    pub fn stored(resource: &'a Arc<Resource>) -> Result<CallTarget<'a>> {
        let stored = resource.stored().ok_or_else(Status::no_such_resource)?;
        Ok(CallTarget::new(resource, stored))
    }
}

impl Default for CallBody {
    fn default() -> CallBody {
        CallBody { bytes: Bytes::new(), encoding: Encoding::Json, patch: None }
    }
}

impl Execution {
    /// Without limits, for calls of the server and its controllers.
    pub fn unlimited() -> Execution {
        Execution { permit: Permit::none(), deadline: None, work: WorkLimit::unlimited() }
    }
}

impl<'a> Call<'a> {
    /// A call without a body and without limits, whose response is plain JSON.
    pub fn new(
        target: CallTarget<'a>,
        requester: Requester<'a>,
        query: &'a Query<'a>,
        warnings: &'a Warnings,
    ) -> Call<'a> {
        Call {
            target,
            query,
            body: CallBody::default(),
            response_format: ResponseFormat::PLAIN,
            warnings,
            requester,
            execution: Execution::unlimited(),
            converted_versions: ConvertedVersions::default(),
        }
    }

    /// The requested resource.
    pub fn resource(&self) -> &'a Arc<Resource> {
        self.target.resource
    }

    /// The store of its objects.
    pub fn stored(&self) -> &'a Stored {
        self.target.stored
    }

    /// The namespace of the path, empty for none.
    pub fn namespace(&self) -> &'a str {
        self.target.namespace
    }

    /// The name of the path, empty for a collection.
    pub fn name(&self) -> &'a str {
        self.target.name
    }

    /// The subresource, empty for the resource itself.
    pub fn subresource(&self) -> &'a str {
        self.target.subresource
    }

    /// The authenticated user.
    pub fn user(&self) -> &'a Identity {
        self.requester.user
    }

    /// The permit of the request.
    pub fn permit(&self) -> &Permit {
        &self.execution.permit
    }

    /// How much work the call may do on this thread.
    pub fn work(&self) -> &WorkLimit {
        &self.execution.work
    }
}

impl Call<'_> {
    /// The resource and subresource as the rules of webhooks and policies name them.
    pub fn requested_resource(&self) -> (&Arc<Resource>, &str) {
        self.target.alias.map_or((self.resource(), self.subresource()), |alias| (alias, ""))
    }

    /// Whether the memory that this call needs may be refused. Calls of the server itself have no deadline and are never refused.
    pub fn memory_priority(&self) -> MemoryPriority<'_> {
        if self.execution.deadline.is_some() {
            MemoryPriority::User(&self.user().name)
        } else {
            MemoryPriority::Granted
        }
    }

    /// Whether a client writes a CustomResourceDefinition, whose compilation takes memory. Writes of the server are never
    /// refused.
    pub fn writes_definition(&self) -> bool {
        self.memory_priority() != MemoryPriority::Granted
            && *self.resource().kind == *"CustomResourceDefinition"
            && self.resource().custom.is_none()
    }

    /// Group and resource, for error messages.
    pub fn group_resource(&self) -> GroupResource<'_> {
        self.resource().name()
    }

    /// The key of an object with this name in the scope of the call.
    pub fn key(&self, name: &str) -> Key {
        if self.resource().namespaced { Key::namespaced(self.namespace(), name) } else { Key::cluster(name) }
    }

    /// The group version and kind of the body and the response: those of the resource, unless a subresource has its own.
    pub fn body_kind(&self) -> (&GroupVersion, &str) {
        match self.resource().subresource(self.subresource()) {
            Some(sub) => (&sub.gv, &sub.kind),
            None => (&self.resource().gv, &self.resource().kind),
        }
    }

    /// The definition of the body's kind, if it is a custom resource.
    pub fn custom(&self) -> Option<&CustomResource> {
        let custom = self.resource().custom.as_deref();
        custom.filter(|_| *self.body_kind().0 == self.resource().gv)
    }

    /// Whether the call is about the scale of a custom resource.
    pub fn is_custom_scale(&self) -> bool {
        self.resource().custom.is_some() && self.subresource() == "scale"
    }

    /// How the subresource of the path is read and written.
    pub fn subresource_strategy(&self) -> Result<&SubresourceStrategy> {
        let own = self.resource().custom.as_ref().filter(|_| self.subresource() == "scale");
        let strategy = match own {
            Some(custom) => custom.scale.as_ref(),
            None => subresources::strategy(self.subresource()),
        };
        strategy.ok_or_else(Status::no_such_resource)
    }

    /// The kind with its rules. A kind in two groups is stored once, but each group has its own rules.
    pub fn kind(&self) -> Kind {
        Kind {
            rules: match self.resource().custom {
                Some(_) => &kinds::CUSTOM,
                None => kinds::rules(self.group_resource().group, &self.resource().kind),
            },
            namespaced: self.resource().namespaced,
            has_status: self.resource().subresource("status").is_some(),
        }
    }

    /// The user, in the form that the rules of kinds take.
    pub fn user_info(&self) -> UserInfo {
        UserInfo {
            name: self.user().name.clone(),
            uid: self.user().uid.clone(),
            groups: self.user().groups.clone(),
            extra: self.user().extra.iter().map(|(key, values)| (key.clone(), values.clone())).collect(),
        }
    }

    /// Adds warnings. Repeated attempts add them once.
    pub fn warn(&self, warnings: WarningList) {
        warnings.into_iter().for_each(|warning| self.warnings.add(warning));
    }

    /// 500 for a corrupt object.
    pub fn unreadable(&self, object: &Object) -> Box<Status> {
        Status::unreadable(self.group_resource(), object)
    }

    /// 422 for invalid fields, with the kind of the body.
    pub fn invalid_body(&self, name: &str, errors: &[FieldError]) -> Box<Status> {
        let (gv, kind) = self.body_kind();
        Status::invalid(&gv.group, kind, name, errors)
    }

    /// 422 for invalid fields of an object that states its own kind, as custom resources do.
    pub fn invalid_object(&self, name: &str, object: &Value, errors: &[FieldError]) -> Box<Status> {
        let kind = object.str("kind");
        if self.resource().custom.is_none() || kind.is_empty() {
            return self.invalid(name, errors);
        }
        let group = object.str("apiVersion").split_once('/').map_or("", |(group, _)| group);
        Status::invalid(group, kind, name, errors)
    }

    /// The etcd key that the reference would show in messages. For custom resources it includes their group.
    pub fn storage_key(&self, name: &str) -> String {
        let key = self.key(name);
        // In a dry run the reference reports the key before it adds its prefix.
        let prefix = if self.query.get("dryRun") == Some("All") { "" } else { "registry/" };
        match self.resource().custom {
            Some(_) => {
                format!("{prefix}{}/{}/{}", self.resource().gv.group, self.resource().plural, key.as_str())
            }
            None => format!("{prefix}{}/{}", status::storage_folder(self.group_resource()), key.as_str()),
        }
    }

    /// 422 for invalid fields, with the storage group of the kind: events have two groups.
    pub fn invalid(&self, name: &str, errors: &[FieldError]) -> Box<Status> {
        Status::invalid(&self.stored().version.group, &self.resource().kind, name, errors)
    }
}
