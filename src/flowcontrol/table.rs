//! The FlowSchemas and priority levels as of the last acknowledged write, in matching order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pilothouse_actors::fair_queuing::level;
use pilothouse_actors::fair_queuing::levels::{Levels, Spec};
use pilothouse_actors::fair_queuing::queues::LevelKind;
use pilothouse_api::bootstrap::flow_control::GROUP;
use pilothouse_api::path::Request;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::well_known::flows::{CATCH_ALL, EXEMPT};
use pilothouse_types::identity::Identity;
use pilothouse_types::object::Key;

use super::dump::RequestRecord;
use crate::flowcontrol::configuration::{FlowSchema, PriorityLevel, bypasses_flow_control};
use crate::live_index::StoreIndex;
use crate::live_index::stored_object::{ReadError, StoredObject};
use crate::metrics::Metrics;
use crate::metrics::flowcontrol::FlowSeries;

/// The types that the table follows; priority levels are the second.
pub const TYPES: [StoredType; 2] = [
    StoredType::v1(GROUP, "flowschemas", "FlowSchema"),
    StoredType::v1(GROUP, "prioritylevelconfigurations", "PriorityLevelConfiguration"),
];
const SCHEMAS: usize = 0;

/// The first matchingPrecedence after the schemas of administrators and health checks. Any other schema may come after one that
/// cannot be read.
const FIRST_ORDINARY_PRECEDENCE: i64 = 3;

/// The classification of a request: a FlowSchema and its priority level.
pub struct Flow {
    /// The UID of the PriorityLevelConfiguration; empty for a mandatory one that does not exist.
    pub level_uid: Bytes,
    /// The level.
    pub level: Arc<level::Level<RequestRecord>>,
    /// Whether the priority level is exempt.
    pub is_exempt: bool,
    /// The name of the schema.
    pub name: String,
    /// The schema.
    pub schema: FlowSchema,
    /// The metrics of its requests, created with the first one.
    series: OnceLock<FlowSeries>,
    metrics: Arc<Metrics>,
}

impl Flow {
    /// The metrics of its requests.
    pub fn series(&self) -> &FlowSeries {
        self.series.get_or_init(|| self.metrics.flows.series(&self.schema.level, &self.name))
    }
}

/// All FlowSchemas and priority levels.
pub struct Table {
    schemas: BTreeMap<String, FlowSchema>,
    levels: BTreeMap<String, PriorityLevel>,
    /// The FlowSchemas and priority levels that cannot be read.
    unreadable: [BTreeSet<String>; 2],
    /// The priority levels that share the seats of the server.
    seats: Arc<Levels<RequestRecord>>,
    metrics: Arc<Metrics>,
    /// The priority levels in use and the matching order, computed on demand: many changes may come before the next request.
    active_levels: OnceLock<BTreeMap<String, Arc<level::Level<RequestRecord>>>>,
    match_order: OnceLock<Vec<Arc<Flow>>>,
}

impl Table {
    /// A table of the mandatory objects only.
    pub fn new(seats: Arc<Levels<RequestRecord>>, metrics: Arc<Metrics>) -> Table {
        Table {
            schemas: BTreeMap::new(),
            levels: BTreeMap::new(),
            unreadable: Default::default(),
            seats,
            metrics,
            active_levels: OnceLock::new(),
            match_order: OnceLock::new(),
        }
    }

    fn put_schema(&mut self, name: &str, schema: Option<FlowSchema>) {
        // Most changes of a FlowSchema are of its status.
        if self.schemas.get(name) != schema.as_ref() {
            set_entry(&mut self.schemas, name, schema);
            self.match_order.take();
        }
    }

    fn put_level(&mut self, name: &str, level: Option<PriorityLevel>) {
        if self.levels.get(name) != level.as_ref() {
            set_entry(&mut self.levels, name, level);
            self.active_levels.take();
            self.match_order.take();
        }
    }

    /// The priority level of this name. Mandatory ones always exist.
    fn level(&self, name: &str) -> Option<PriorityLevel> {
        self.levels
            .get(name)
            .cloned()
            .or_else(|| PriorityLevel::mandatory(name).filter(|_| is_mandatory(name)))
    }

    fn active_levels(&self) -> &BTreeMap<String, Arc<level::Level<RequestRecord>>> {
        self.active_levels.get_or_init(|| {
            let names = self.levels.keys().map(String::as_str).chain([EXEMPT, CATCH_ALL]);
            let names: BTreeSet<&str> = names.collect();
            let spec = |name: &str| {
                let PriorityLevel { share, shape, .. } = self.level(name)?;
                Some(Spec { name: name.to_owned(), share, shape })
            };
            self.seats.configure(&names.into_iter().filter_map(spec).collect::<Vec<_>>())
        })
    }

    fn flow(&self, name: &str, schema: &FlowSchema) -> Option<Arc<Flow>> {
        let level = self.level(&schema.level)?;
        Some(Arc::new(Flow {
            level_uid: level.uid,
            level: self.active_levels().get(&schema.level)?.clone(),
            is_exempt: level.shape == LevelKind::Exempt,
            name: name.to_owned(),
            schema: schema.clone(),
            series: OnceLock::new(),
            metrics: self.metrics.clone(),
        }))
    }

    /// The FlowSchemas whose priority level exists, in matching order. The last one is the catch-all.
    fn build_match_order(&self) -> Vec<Arc<Flow>> {
        // They are sorted by name already: with equal matchingPrecedence the first name wins.
        let mut order: Vec<Arc<Flow>> =
            self.schemas.iter().filter_map(|(name, schema)| self.flow(name, schema)).collect();
        order.sort_by_key(|flow| flow.schema.precedence);
        let has_exempt = order.iter().any(|flow| flow.name == EXEMPT);
        let catch_all = order.iter().find(|flow| flow.name == CATCH_ALL).cloned();
        if let Some(flow) = self.flow(EXEMPT, &FlowSchema::mandatory(EXEMPT)).filter(|_| !has_exempt) {
            order.insert(0, flow);
        }
        order.extend(catch_all.or_else(|| self.flow(CATCH_ALL, &FlowSchema::mandatory(CATCH_ALL))));
        let series = order.iter().map(|flow| (flow.schema.level.clone(), flow.name.clone()));
        self.metrics.flows.retain(series.collect());
        order
    }

    /// Classifies a request of this user. `None` for long-running requests.
    pub fn classify(&self, user: &Identity, request: &Request<'_>) -> Option<Arc<Flow>> {
        if bypasses_flow_control(request) {
            return None;
        }
        let order = self.match_order.get_or_init(|| self.build_match_order());
        let flow = order.iter().find(|flow| flow.schema.matches(user, request));
        // A schema that cannot be read may have been the first to match, with a limited level.
        let flow = flow.filter(|flow| !(flow.is_exempt && self.may_be_limited(&flow.schema)));
        // A user without groups matches no FlowSchema.
        flow.or(order.last()).cloned()
    }

    /// Whether the requests of an exempt schema may be those of another one that cannot be read.
    fn may_be_limited(&self, schema: &FlowSchema) -> bool {
        schema.precedence >= FIRST_ORDINARY_PRECEDENCE
            && self.unreadable.iter().any(|names| !names.is_empty())
    }

    /// Applies changed configuration to the priority levels, if no request has done so yet.
    pub fn settle(&self) {
        self.active_levels();
    }
}

fn is_mandatory(level: &str) -> bool {
    [EXEMPT, CATCH_ALL].contains(&level)
}

fn set_entry<T>(map: &mut BTreeMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
}

impl Table {
    fn set_unreadable(&mut self, type_index: usize, name: &str, is_unreadable: bool) {
        if let Some(names) = self.unreadable.get_mut(type_index) {
            if is_unreadable {
                names.insert(name.to_owned())
            } else {
                names.remove(name)
            };
        }
    }
}

impl StoreIndex for Table {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, type_index: usize, object: &StoredObject<'_>) -> Result<(), ReadError> {
        let (name, value) = (object.name(), object.value()?);
        match type_index {
            SCHEMAS => self.put_schema(name, Some(FlowSchema::read(&value))),
            _ => {
                let level = PriorityLevel::read(&value)
                    .ok_or_else(|| ReadError::Whole("its spec does not fit its type".to_owned()))?;
                self.put_level(name, Some(level));
            }
        }
        self.set_unreadable(type_index, name, false);
        Ok(())
    }

    fn remove(&mut self, type_index: usize, key: &Key) {
        match type_index {
            SCHEMAS => self.put_schema(key.name(), None),
            _ => self.put_level(key.name(), None),
        }
        self.set_unreadable(type_index, key.name(), false);
    }

    /// Requests that it may have matched are limited by the catch-all level. Mandatory objects always exist.
    fn fail_closed(&mut self, type_index: usize, key: &Key) {
        self.remove(type_index, key);
        self.set_unreadable(type_index, key.name(), true);
    }

    fn clear(&mut self, type_index: usize) {
        if let Some(names) = self.unreadable.get_mut(type_index) {
            names.clear();
        }
        match type_index {
            SCHEMAS => self.schemas.clear(),
            _ => {
                self.levels.clear();
                self.active_levels.take();
            }
        }
        self.match_order.take();
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
