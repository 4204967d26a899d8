//! A server's life on its own thread: start, serve, and shut down in an order that loses no acknowledged write.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::handle::{Exit, Order};
use crate::http::edge::Edge;
use crate::limits;
use crate::wiring::StartError;
use crate::wiring::{Boot, Wired, Wiring};

/// Runs a server until it ends. Sends exactly one message about whether it started.
pub(super) fn run(
    boot: Boot,
    edge: Edge,
    wiring: impl Wiring,
    orders: watch::Receiver<Order>,
    tell_started: SyncSender<Result<(), StartError>>,
) -> Exit {
    let system = actix_rt::System::new();
    let exit = system.block_on(live(boot, edge, wiring, orders, tell_started));
    // Ends the threads of all arbiters, and with them every actor.
    actix_rt::System::current().stop();
    if let Err(error) = system.run() {
        tracing::debug!(%error, "the System ended oddly");
    }
    exit
}

async fn live(
    boot: Boot,
    edge: Edge,
    wiring: impl Wiring,
    mut orders: watch::Receiver<Order>,
    tell_started: SyncSender<Result<(), StartError>>,
) -> Exit {
    let config = boot.config.clone();
    let delay = config.lifecycle.shutdown_delay_duration;
    let mut wired = match start(boot, edge, wiring).await {
        Ok(wired) => wired,
        Err(error) => {
            let exit = Exit::Failed(error.to_string());
            // `Server::start` waits for exactly this message. If its receiver is gone, nobody needs the answer.
            let _ = tell_started.send(Err(error));
            return exit;
        }
    };
    let _ = tell_started.send(Ok(()));
    drop(tell_started);

    let application = wired.application.clone();
    let order = tokio::select! {
        order = next(&mut orders) => order,
        why = application.failed() => return cut(wired, why).await,
        ended = wired.serving.ended() => {
            let why = ended.err().map_or_else(|| "the HTTP server has ended".to_owned(), |error| error.to_string());
            return cut(wired, why).await;
        }
    };
    if order == Order::Stop {
        let finish = finish(&wired, delay, config.limits.request_timeout);
        tokio::select! {
            () = finish => {}
            () = hurry(&mut orders) => tracing::warn!("told to hurry: requests in flight are cut"),
            why = application.failed() => return cut(wired, why).await,
        }
    }
    close(wired).await
}

async fn start(boot: Boot, edge: Edge, wiring: impl Wiring) -> Result<Wired, StartError> {
    let mut wired = wiring.start(boot, edge).await?;
    wired.serving.started().await?;
    wired.application.ready().await?;
    Ok(wired)
}

/// Waits for an order to stop. A dropped handle counts as one.
async fn next(orders: &mut watch::Receiver<Order>) -> Order {
    orders.wait_for(|order| *order != Order::Run).await.map_or(Order::Hurry, |order| *order)
}

async fn hurry(orders: &mut watch::Receiver<Order>) {
    let _ = orders.wait_for(|order| *order == Order::Hurry).await;
}

/// Drains clients: /readyz fails so that new ones go elsewhere, watches end, requests in flight are answered.
async fn finish(wired: &Wired, delay: Duration, patience: Duration) {
    tracing::info!("stopping");
    wired.application.refuse_readiness();
    sleep(delay).await;
    wired.serving.pause().await;
    wired.application.end_watches().await;
    let left = wired.serving.drain(patience).await;
    if left > 0 {
        tracing::warn!(connections = left, "connections did not end in time and are cut");
    }
}

/// Accepts no more requests, then makes every accepted write durable.
async fn close(wired: Wired) -> Exit {
    let Wired { serving, application } = wired;
    application.refuse_readiness();
    serving.pause().await;
    let _ = timeout(limits::HURRIED_STOP, application.end_watches()).await;
    serving.stop().await;
    match timeout(limits::FLUSH, application.flush()).await {
        Ok(Ok(())) => Exit::Stopped,
        Ok(Err(why)) => Exit::Failed(why),
        Err(_) => Exit::Failed("the store did not finish in time".to_owned()),
    }
}

async fn cut(wired: Wired, why: String) -> Exit {
    tracing::error!("{why}");
    wired.application.refuse_readiness();
    // Writers whose writes failed are told so before their connections close.
    sleep(limits::LAST_ANSWERS).await;
    wired.serving.stop().await;
    wired.application.give_up().await;
    Exit::Failed(why)
}
