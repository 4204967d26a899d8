//! Jobs and CronJobs.

pub mod cron;
pub mod cron_job;
mod indexes;
pub mod job;
pub mod job_status;
mod policy;
