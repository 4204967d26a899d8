//! A server's life on its own thread: start, serve, and shut down in an order that loses no acknowledged write.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::handle::{Exit, StopOrder};
use crate::config::Config;
use crate::http::edge::Edge;
use crate::limits;
use crate::server::application::StartError;
use crate::server::application::{Assemble, Assembled, StartContext};

/// Runs a server until it ends. Sends exactly one message about whether it started.
pub(super) fn run(
    context: StartContext,
    edge: Edge,
    assembly: impl Assemble,
    orders: watch::Receiver<StopOrder>,
    started_sender: SyncSender<Result<(), StartError>>,
) -> Exit {
    let system = actix_rt::System::new();
    let exit = system.block_on(serve(context, edge, assembly, orders, started_sender));
    // Ends the threads of all arbiters, and with them every actor.
    actix_rt::System::current().stop();
    if let Err(error) = system.run() {
        tracing::debug!(%error, "the actor system ended with an error");
    }
    exit
}

async fn serve(
    context: StartContext,
    edge: Edge,
    assembly: impl Assemble,
    mut orders: watch::Receiver<StopOrder>,
    started_sender: SyncSender<Result<(), StartError>>,
) -> Exit {
    let config = context.config.clone();
    let mut assembled = match start(context, edge, assembly).await {
        Ok(assembled) => assembled,
        Err(error) => {
            let exit = Exit::Failed(error.to_string());
            // `Server::start` waits for exactly this message. If its receiver is gone, nobody needs the message.
            let _ = started_sender.send(Err(error));
            return exit;
        }
    };
    let _ = started_sender.send(Ok(()));
    drop(started_sender);

    let application = assembled.application.clone();
    let order = tokio::select! {
        order = next(&mut orders) => order,
        reason = application.failed() => return fail(assembled, reason).await,
        result = assembled.serving.ended() => {
            let reason = result.err().map_or_else(|| "the HTTP server has ended".to_owned(), |error| error.to_string());
            return fail(assembled, reason).await;
        }
    };
    if order == StopOrder::Stop {
        let finish = finish(&assembled, &config);
        tokio::select! {
            () = finish => {}
            () = hurry(&mut orders) => tracing::warn!("second signal: aborting requests in flight"),
            reason = application.failed() => return fail(assembled, reason).await,
        }
    }
    close(assembled).await
}

async fn start(context: StartContext, edge: Edge, assembly: impl Assemble) -> Result<Assembled, StartError> {
    let mut assembled = assembly.start(context, edge).await?;
    assembled.serving.started().await?;
    assembled.application.ready().await?;
    Ok(assembled)
}

/// Waits for an order to stop. A dropped handle counts as one.
async fn next(orders: &mut watch::Receiver<StopOrder>) -> StopOrder {
    orders.wait_for(|order| *order != StopOrder::Run).await.map_or(StopOrder::Hurry, |order| *order)
}

async fn hurry(orders: &mut watch::Receiver<StopOrder>) {
    let _ = orders.wait_for(|order| *order == StopOrder::Hurry).await;
}

/// Drains clients: /readyz fails so that new ones go elsewhere, watches end, requests in flight are answered.
async fn finish(assembled: &Assembled, config: &Config) {
    let (Assembled { serving, application }, lifecycle) = (assembled, &config.lifecycle);
    let grace = lifecycle.shutdown_watch_termination_grace_period;
    let drain_timeout = config.limits.request_timeout.max(grace);
    tracing::info!("stopping");
    application.refuse_readiness();
    sleep(lifecycle.shutdown_delay_duration).await;
    let remaining = if lifecycle.shutdown_send_retry_after {
        // While there is something to wait for, clients that come are told to go elsewhere.
        let answered = async { tokio::join!(application.refuse_requests(), application.end_watches(grace)) };
        let _ = timeout(drain_timeout, answered).await;
        serving.pause().await;
        serving.drain(limits::LAST_CONNECTIONS_TIMEOUT).await
    } else {
        serving.pause().await;
        tokio::join!(application.end_watches(grace), serving.drain(drain_timeout)).1
    };
    if remaining > 0 {
        tracing::warn!(connections = remaining, "drain timed out; closing remaining connections");
    }
}

/// Accepts no more requests, then makes every accepted write durable.
async fn close(assembled: Assembled) -> Exit {
    let Assembled { serving, application } = assembled;
    application.refuse_readiness();
    serving.pause().await;
    let _ = timeout(limits::FORCED_STOP_TIMEOUT, application.end_watches(Duration::ZERO)).await;
    serving.stop().await;
    match timeout(limits::FLUSH_TIMEOUT, application.flush()).await {
        Ok(Ok(())) => Exit::Stopped,
        Ok(Err(error)) => Exit::Failed(error),
        Err(_) => Exit::Failed("the store did not finish in time".to_owned()),
    }
}

async fn fail(assembled: Assembled, reason: String) -> Exit {
    tracing::error!("{reason}");
    assembled.application.refuse_readiness();
    // Clients whose writes failed get their responses before their connections close.
    sleep(limits::LAST_RESPONSES_TIMEOUT).await;
    assembled.serving.stop().await;
    assembled.application.give_up().await;
    Exit::Failed(reason)
}
