//! The audit webhook: sends lists of events, with retries. Few lists are in flight at once; further events wait in the bounded
//! queue.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::audit::event::Event;
use pilothouse_client::webhook::{Failure, Service, with_retries_after};
use tokio::task::JoinSet;

use super::batches::{EncodedEvent, Writer};
use crate::limits::AUDIT_BATCHES_IN_FLIGHT;
use crate::metrics::audit::Audit as Counts;

/// The beginning of every EventList.
const HEAD: &str = r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;

/// Sends batches of events to the webhook.
pub struct Webhook {
    service: Rc<Service>,
    first_pause: Duration,
    counts: Arc<Counts>,
    sends: JoinSet<()>,
}

impl Webhook {
    /// A backend that sends to this server.
    pub fn new(service: Service, first_pause: Duration, counts: Counts) -> Webhook {
        Webhook { service: Rc::new(service), first_pause, counts: Arc::new(counts), sends: JoinSet::new() }
    }
}

/// Encodes these events as an EventList, taking their texts.
fn event_list(lines: &mut [EncodedEvent]) -> String {
    let mut text = HEAD.as_bytes().to_vec();
    for (index, line) in lines.iter_mut().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&std::mem::take(&mut line.text));
    }
    text.extend_from_slice(b"]}\n");
    String::from_utf8_lossy(&text).into_owned()
}

impl Writer for Webhook {
    fn text(&self, event: &Event) -> Vec<u8> {
        let mut text = Vec::new();
        event.write_json(&mut text, false);
        text
    }

    async fn write(&mut self, mut lines: Vec<EncodedEvent>) {
        while self.sends.len() >= AUDIT_BATCHES_IN_FLIGHT {
            self.sends.join_next().await;
        }
        let (service, first_pause, counts) = (self.service.clone(), self.first_pause, self.counts.clone());
        self.sends.spawn_local(async move {
            let text = event_list(&mut lines);
            // Every failure is worth a retry.
            let result =
                with_retries_after(first_pause, || service.send(text.clone()), |_: &Failure| true).await;
            if let Err(failure) = &result {
                counts.count_lost("webhook", lines.len(), &failure.to_string());
            }
            lines.into_iter().for_each(|line| line.done(result.is_ok()));
        });
        // Reap finished sends, so that the limit is current.
        while self.sends.try_join_next().is_some() {}
    }

    async fn finish(&mut self) {
        while self.sends.join_next().await.is_some() {}
    }
}
