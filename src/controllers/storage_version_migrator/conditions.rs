//! The conditions of a StorageVersionMigration.

use pilothouse_apimachinery::value::Value;

/// A condition of a migration. Its reason follows from its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Objects are being rewritten.
    Running,
    /// All objects are rewritten.
    Succeeded,
    /// Some object could not be rewritten.
    Failed,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Condition::Running => "Running",
            Condition::Succeeded => "Succeeded",
            Condition::Failed => "Failed",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Condition::Running => "StorageVersionMigrationInProgress",
            Condition::Succeeded => "StorageVersionMigrationSucceeded",
            Condition::Failed => "StorageVersionMigrationFailed",
        }
    }
}

fn conditions(migration: &Value) -> &[Value] {
    migration.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default()
}

fn is_true(migration: &Value, condition: Condition) -> bool {
    let is_set =
        |existing: &Value| existing.str("type") == condition.name() && existing.str("status") == "True";
    conditions(migration).iter().any(is_set)
}

/// Whether a migration has ended.
pub(super) fn is_finished(migration: &Value) -> bool {
    is_true(migration, Condition::Succeeded) || is_true(migration, Condition::Failed)
}

/// Sets a condition of a migration that has not ended. Returns whether it has changed.
pub(super) fn set(migration: &mut Value, condition: Condition, message: &str, now: &str) -> bool {
    if is_finished(migration) || is_true(migration, condition) {
        return false;
    }
    let mut all = conditions(migration).to_vec();
    all.retain(|existing| existing.str("type") != condition.name());
    // Whatever follows, the migration is not running any more.
    for existing in all.iter_mut().filter(|existing| existing.str("type") == Condition::Running.name()) {
        existing.set("status", "False");
    }
    let mut new = Value::object();
    for (field, text) in [
        ("type", condition.name()),
        ("status", "True"),
        ("lastUpdateTime", now),
        ("reason", condition.reason()),
        ("message", message),
    ] {
        if !text.is_empty() {
            new.set(field, text);
        }
    }
    all.push(new);
    migration.entry("status").set("conditions", all);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(migration: &Value) -> Vec<String> {
        let state = |condition: &Value| {
            format!("{} {} {}", condition.str("type"), condition.str("status"), condition.str("reason"))
        };
        conditions(migration).iter().map(state).collect()
    }

    #[test]
    fn finished_migration_keeps_its_conditions() {
        let mut migration = Value::object();
        assert!(set(&mut migration, Condition::Running, "", "1"));
        assert!(!set(&mut migration, Condition::Running, "", "2"), "already set");
        assert!(!is_finished(&migration));
        assert!(set(&mut migration, Condition::Succeeded, "", "3"));
        assert!(is_finished(&migration));
        assert!(!set(&mut migration, Condition::Failed, "late", "4"));
        assert_eq!(
            states(&migration),
            [
                "Running False StorageVersionMigrationInProgress",
                "Succeeded True StorageVersionMigrationSucceeded"
            ]
        );
        assert_eq!(conditions(&migration)[0].str("lastUpdateTime"), "1");
        assert_eq!(conditions(&migration)[1].get("message"), None);
    }

    #[test]
    fn failed_migration_says_why() {
        let mut migration = Value::object();
        assert!(set(&mut migration, Condition::Failed, "resource not found", "1"));
        assert_eq!(states(&migration), ["Failed True StorageVersionMigrationFailed"]);
        assert_eq!(conditions(&migration)[0].str("message"), "resource not found");
    }
}
