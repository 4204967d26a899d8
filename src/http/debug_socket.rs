//! The debug pages on a Unix socket, for operators on the machine: profiles and /debug/flags, without authentication.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use actix_web::dev::ServerHandle;
use actix_web::web::{self, Payload};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use pilothouse_apimachinery::query::{self, Query};

use super::handler::profiling;
use super::handler::{debug_flags, render};
use crate::limits::DEBUG_SOCKET_CONNECTIONS;
use crate::profiles::Profiles;

/// A socket that serves the pages.
pub struct DebugServer(ServerHandle);

impl DebugServer {
    /// Serves no more requests.
    pub async fn stop(&self) {
        self.0.stop(false).await;
    }
}

/// Serves the pages. Must be called inside an actix System.
pub fn serve(listener: UnixListener, profiles: Arc<Profiles>) -> io::Result<DebugServer> {
    let application =
        move || App::new().app_data(web::Data::from(Arc::clone(&profiles))).default_service(web::to(respond));
    let server = HttpServer::new(application)
        .workers(1)
        .max_connections(DEBUG_SOCKET_CONNECTIONS)
        .disable_signals()
        .listen_uds(listener)?
        .run();
    let handle = DebugServer(server.handle());
    actix::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the debug socket has ended");
        }
    });
    Ok(handle)
}

async fn respond(request: HttpRequest, payload: Payload, profiles: web::Data<Profiles>) -> HttpResponse {
    let Ok(path) = query::decode_path(request.path()) else { return render::page_not_found() };
    if debug_flags::is_flag(&path) {
        return debug_flags::respond(&request, payload, &path).await;
    }
    match profiling::page(&path) {
        // Only here: whoever may open the socket may read the command line of the process anyway.
        Some(profiling::Page::Profile("cmdline")) => profiling::command_line(),
        Some(page) => profiling::respond(&profiles, page, &Query::parse(request.query_string())).await,
        None => render::page_not_found(),
    }
}
