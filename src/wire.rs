//! The one place of wiring: which actors run where, and what stands behind the edge.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::{HttpResponse, web};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, pending, ready};

use crate::http::edge::Edge;
use crate::server::StartError;
use crate::server::wiring::{Application, Boot, Wired, Wiring};

/// The wiring of the product.
pub struct Wires;

/// What the parts of a running server share.
#[derive(Clone)]
struct Shared {
    ready: Arc<AtomicBool>,
}

impl Wiring for Wires {
    async fn start(self, _boot: Boot, edge: Edge) -> Result<Wired, StartError> {
        let shared = Shared { ready: Arc::new(AtomicBool::new(false)) };
        let of_workers = shared.clone();
        let serving = edge.serve(move || {
            let shared = of_workers.clone();
            actix_web::App::new().route("/readyz", web::get().to(move || ready(readyz(&shared))))
        })?;
        Ok(Wired { serving, application: Rc::new(shared) })
    }
}

fn readyz(shared: &Shared) -> HttpResponse {
    if shared.ready.load(Ordering::Acquire) {
        HttpResponse::Ok().body("ok")
    } else {
        HttpResponse::InternalServerError().body("shutdown")
    }
}

impl Application for Shared {
    fn ready(&self) -> LocalBoxFuture<'_, Result<(), StartError>> {
        self.ready.store(true, Ordering::Release);
        ready(Ok(())).boxed_local()
    }

    fn refuse_readiness(&self) {
        self.ready.store(false, Ordering::Release);
    }

    fn end_watches(&self) -> LocalBoxFuture<'_, ()> {
        ready(()).boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed_local()
    }

    fn failed(&self) -> LocalBoxFuture<'_, String> {
        pending().boxed_local()
    }
}
