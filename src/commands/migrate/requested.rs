//! Lets the server migrate a resource: creates a StorageVersionMigration and waits for its end.

use std::time::Duration;

use hyper::Method;
use pilothouse_apimachinery::well_known::JSON;
use serde_json::{Value, json};

use super::api::{Api, Failure, succeed};
use super::discovery::{MIGRATIONS, MigratedResource};
use super::warn_line;

/// How often the state of a migration is read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The state of a migration.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// No controller has begun it.
    New,
    Running,
    Succeeded,
    Failed(String),
}

fn state(migration: &Value) -> State {
    let condition = |kind: &str| {
        let mut conditions = migration["status"]["conditions"].as_array().into_iter().flatten();
        conditions.find(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    if let Some(failed) = condition("Failed") {
        let message = failed["message"].as_str().filter(|message| !message.is_empty());
        return State::Failed(message.unwrap_or("no reason is given").to_owned());
    }
    if condition("Succeeded").is_some() {
        return State::Succeeded;
    }
    let has_begun = migration["status"]["resourceVersion"].is_string() || condition("Running").is_some();
    if has_begun { State::Running } else { State::New }
}

/// Creates a migration and waits until it has succeeded.
pub(super) async fn migrate(
    api: &Api,
    resource: &MigratedResource,
    start_timeout: Duration,
) -> Result<String, Failure> {
    let (group, version, plural) = MIGRATIONS;
    let collection = format!("/apis/{group}/{version}/{plural}");
    let migration = json!({"apiVersion": format!("{group}/{version}"), "kind": "StorageVersionMigration",
        "metadata": {"generateName": format!("{resource}-")},
        "spec": {"resource": {"group": resource.group, "version": resource.version, "resource": resource.plural}}});
    let reply = api.send(Method::POST, &collection, JSON, Some((JSON, &migration))).await?;
    let created = succeed(Method::POST, &collection, reply)?;
    let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    wait(api, resource, &format!("{collection}/{name}"), start_timeout).await?;
    Ok(format!("migrated by the server (StorageVersionMigration {name})"))
}

async fn wait(
    api: &Api,
    resource: &MigratedResource,
    path: &str,
    start_timeout: Duration,
) -> Result<(), Failure> {
    let (mut waited, mut is_announced) = (Duration::ZERO, false);
    loop {
        let Some(migration) = api.get(path, JSON).await? else {
            return Err(Failure::Failed(format!("{path} was deleted before it was finished")));
        };
        match state(&migration) {
            State::Succeeded => return Ok(()),
            State::Failed(message) => return Err(Failure::Failed(format!("{path} has failed: {message}"))),
            State::New if waited >= start_timeout => {
                return Err(Failure::Failed(format!(
                    "no controller has begun {path} within {} seconds: enable the \
                     storage-version-migrator-controller, or use --direct",
                    start_timeout.as_secs()
                )));
            }
            State::Running if !is_announced => {
                warn_line(resource, "the server migrates it");
                is_announced = true;
            }
            State::New | State::Running => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        waited += POLL_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_from_the_conditions() {
        let with = |conditions: Value| state(&json!({"status": {"conditions": conditions}}));
        assert_eq!(state(&json!({})), State::New);
        assert_eq!(state(&json!({"status": {"resourceVersion": "7"}})), State::Running);
        assert_eq!(with(json!([{"type": "Running", "status": "True"}])), State::Running);
        let ended = json!([{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]);
        assert_eq!(with(ended), State::Succeeded);
        let failed = json!([{"type": "Failed", "status": "True", "message": "no"}]);
        assert_eq!(with(failed), State::Failed("no".to_owned()));
    }
}
