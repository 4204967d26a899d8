//! The health of the KMS plugins, for the health endpoints of the server.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::error::join;
use crate::kms::Plugin;
use crate::transformers::Transformers;

/// The check of all plugins together.
const ALL: &str = "kms-providers";

/// A health check for `/healthz` and `/readyz`; `/livez` has none, because a restart would not mend a plugin.
#[derive(Clone)]
pub struct HealthCheck {
    name: String,
    /// The plugin that is checked; `None` for all of them.
    index: Option<usize>,
    current: Arc<ArcSwap<Transformers>>,
}

impl HealthCheck {
    /// The checks of a configuration: one for all plugins, if the configuration may be replaced or all plugins speak v2; otherwise
    /// one for each.
    pub(crate) fn all(current: &Arc<ArcSwap<Transformers>>, is_reloaded: bool) -> Vec<HealthCheck> {
        let transformers = current.load();
        let plugins = transformers.plugins();
        let check = |name: String, index| HealthCheck { name, index, current: current.clone() };
        let is_v2 = |plugin: &Plugin| matches!(plugin, Plugin::V2(_));
        if is_reloaded || (!plugins.is_empty() && plugins.iter().all(is_v2)) {
            return vec![check(ALL.to_owned(), None)];
        }
        (0..plugins.len()).map(|index| check(plugin_name(index), Some(index))).collect()
    }

    /// The name: `kms-providers`, or `kms-provider-0` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks the plugins, unless that was done a moment ago. May be awaited on any runtime, and takes as long as their timeouts.
    pub async fn check(&self) -> Result<(), String> {
        let transformers = self.current.load_full();
        let mut errors = Vec::new();
        for (index, plugin) in self.checked(&transformers) {
            errors.extend(plugin.check().await.err().map(|error| self.describe(index, error)));
        }
        result(errors)
    }

    /// The results of the last checks, without waiting.
    pub fn last(&self) -> Result<(), String> {
        let transformers = self.current.load();
        let checked = self.checked(&transformers);
        result(checked.filter_map(|(index, plugin)| {
            let result = plugin.last_check();
            let error = result.unwrap_or_else(|| Err("it was not checked yet".to_owned())).err()?;
            Some(self.describe(index, error))
        }))
    }

    fn checked<'a>(&self, transformers: &'a Transformers) -> impl Iterator<Item = (usize, &'a Plugin)> {
        let checked = self.index;
        let plugins = transformers.plugins().iter().enumerate();
        plugins.filter(move |(index, _)| checked.is_none_or(|checked| checked == *index))
    }

    fn describe(&self, index: usize, error: String) -> String {
        match self.index {
            Some(_) => error,
            None => format!("{}: {error}", plugin_name(index)),
        }
    }
}

impl std::fmt::Debug for HealthCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HealthCheck").field("name", &self.name).finish_non_exhaustive()
    }
}

fn plugin_name(index: usize) -> String {
    format!("kms-provider-{index}")
}

fn result(errors: impl IntoIterator<Item = String>) -> Result<(), String> {
    let errors: Vec<String> = errors.into_iter().collect();
    if errors.is_empty() { Ok(()) } else { Err(join(errors)) }
}
