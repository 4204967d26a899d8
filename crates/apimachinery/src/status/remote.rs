//! Statuses for responses of other servers.

use super::{Details, GroupResource, Status};
use crate::field::quoted;

impl Status {
    /// The refusal of a webhook, with the webhook's own code, reason and message.
    pub fn from_webhook(code: u16, reason: &str, message: String, details: Option<Details>) -> Box<Status> {
        let foreign_reason = (!reason.is_empty()).then(|| reason.into());
        Box::new(Status { code, reason: "", message, details, foreign_reason })
    }

    /// The client's view of an error that another server returned for an object. `explanation` is the text
    /// of that response.
    pub fn from_remote(code: u16, resource: GroupResource<'_>, name: &str, explanation: &str) -> Box<Status> {
        let (reason, message) = match code {
            400 => return Status::bad_request(explanation),
            500 => return Status::internal(explanation),
            401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_owned()),
            403 => ("Forbidden", explanation.to_owned()),
            404 => ("NotFound", "the server could not find the requested resource".to_owned()),
            405 => {
                let message = "the server does not allow this method on the requested resource";
                ("MethodNotAllowed", message.to_owned())
            }
            406 if explanation.is_empty() || explanation == "unknown" => {
                let message = "the server was unable to respond with a content type that the client supports";
                ("NotAcceptable", message.to_owned())
            }
            406 => ("NotAcceptable", explanation.to_owned()),
            409 => ("Conflict", "the server reported a conflict".to_owned()),
            415 => ("UnsupportedMediaType", explanation.to_owned()),
            422 => ("Invalid", "the server rejected our request due to an error in our request".to_owned()),
            429 => {
                let message = "the server has received too many requests and has asked us to try again later";
                ("TooManyRequests", message.to_owned())
            }
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request".to_owned()),
            504 => {
                let message = "the server was unable to return a response in the time allotted, but may still be \
                     processing the request";
                ("Timeout", message.to_owned())
            }
            501.. => {
                let explanation = quoted(explanation);
                let message = format!(
                    "an error on the server ({explanation}) has prevented the request from succeeding"
                );
                ("InternalError", message)
            }
            _ => {
                let message = format!(
                    "the server responded with the status code {code} but did not return more information"
                );
                ("", message)
            }
        };
        // The reference leaves the verb empty here.
        Status::about(code, reason, format!("{message} ( {resource} {name})"), resource, name)
    }
}
