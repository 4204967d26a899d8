//! How a store tells broadcasters of other threads that a window has grown, without ever waiting for them.
//!
//! Invariant: whatever is rung is drained later. A ring marks the type first and raises the flag second; a drain lowers
//! the flag first and takes the types second. So a ring that comes between the two is either taken or sends anew.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use actix::prelude::*;

use crate::object::TypeName;

/// Some windows have grown; the bell knows which. Sent at most once until the bell is drained. A recipient whose mailbox
/// is full drains its bell when it handles what stands in that mailbox.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Published;

/// The types of which one recipient has not heard yet.
pub struct Bell {
    recipient: Recipient<Published>,
    rung: AtomicBool,
    dirty: Mutex<BTreeSet<TypeName>>,
}

impl Bell {
    /// A bell that nobody has rung yet.
    pub fn new(recipient: Recipient<Published>) -> Arc<Bell> {
        Arc::new(Bell { recipient, rung: AtomicBool::new(false), dirty: Mutex::default() })
    }

    /// Says that the window of this type has grown.
    pub fn ring(&self, type_name: &TypeName) {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner).insert(type_name.clone());
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Full: the recipient drains after each message. Closed: nobody is left to hear.
            let _ = self.recipient.try_send(Published);
        }
    }

    /// The types that were rung since the last drain.
    pub fn drain(&self) -> Vec<TypeName> {
        self.rung.store(false, Ordering::Release);
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *dirty).into_iter().collect()
    }
}

/// The bells of all broadcasters.
#[derive(Clone, Default)]
pub struct Bells(Arc<RwLock<Vec<Arc<Bell>>>>);

impl Bells {
    /// Rings this one too from now on.
    pub fn add(&self, bell: Arc<Bell>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(bell);
    }

    /// Rings this one no more.
    pub fn remove(&self, bell: &Arc<Bell>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|known| !Arc::ptr_eq(known, bell));
    }

    /// Rings them all.
    pub fn ring(&self, type_name: &TypeName) {
        for bell in self.0.read().unwrap_or_else(PoisonError::into_inner).iter() {
            bell.ring(type_name);
        }
    }
}
