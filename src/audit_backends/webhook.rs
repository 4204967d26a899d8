//! The audit webhook: sends lists of events, with retries. Few lists are in flight at once; further events wait in the bounded
//! queue.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_api::audit::event::Event;
use tokio::task::JoinSet;

use super::batches::{EncodedEvent, Writer};
use crate::limits::AUDIT_BATCHES_SENT;
use crate::metrics::audit::Audit as Counts;
use crate::webhook::{Failure, Service, pausing};

/// The beginning of every EventList.
const HEAD: &str = r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;

/// Sends events.
pub struct Webhook {
    service: Rc<Service>,
    first_pause: Duration,
    counts: Arc<Counts>,
    sent: JoinSet<()>,
}

impl Webhook {
    /// Sends to this server.
    pub fn new(service: Service, first_pause: Duration, counts: Counts) -> Webhook {
        Webhook { service: Rc::new(service), first_pause, counts: Arc::new(counts), sent: JoinSet::new() }
    }
}

/// The EventList of these events, taking their texts.
fn list(lines: &mut [EncodedEvent]) -> String {
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
        while self.sent.len() >= AUDIT_BATCHES_SENT {
            self.sent.join_next().await;
        }
        let (service, first, counts) = (self.service.clone(), self.first_pause, self.counts.clone());
        self.sent.spawn_local(async move {
            let text = list(&mut lines);
            // Every failure is worth a retry.
            let sent = pausing(first, || service.ask(text.clone()), |_: &Failure| true).await;
            if let Err(failure) = &sent {
                counts.lost("webhook", lines.len(), &failure.to_string());
            }
            lines.into_iter().for_each(|line| line.done(sent.is_ok()));
        });
        // Reap finished sends, so that the limit is current.
        while self.sent.try_join_next().is_some() {}
    }

    async fn finish(&mut self) {
        while self.sent.join_next().await.is_some() {}
    }
}
