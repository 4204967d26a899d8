//! The kinds that run pods to their end.

pub mod cron;
pub mod cron_job;
pub mod job;
