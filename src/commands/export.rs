//! `pilothouse export`: writes the objects of a cluster as a stream.

mod manifest;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Parser;
use pilothouse_apimachinery::value::Value;

use super::api_objects::ApiObjects;
use super::connection::{ConnectionFlags, run_until_interrupted};
use super::object_stream::cluster_objects::reason_to_omit;
use super::object_stream::order::Phase;
use super::object_stream::output_file::OutputFile;
use super::object_stream::resource::Resource;
use super::object_stream::selection::Selection;
use super::object_stream::writer::{ObjectWriter, StreamFormat};
use super::object_stream::{Listing, Source};
use super::progress::{Progress, count};

const BUFFER_BYTES: usize = 256 << 10;

/// Write the objects of a cluster as a stream, which `pilothouse import` brings into another one.
///
/// Every stored resource is exported, in the version that the server prefers, each with all fields. Each resource is listed at one
/// moment, but different resources at different moments. Resources of extension servers are left out unless --resource names them.
///
/// Exit code 0 if everything that was selected is in the output. Otherwise 1, and a file that was there stays as it was.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse export", no_binary_name = true)]
pub(super) struct Options {
    /// The form of the output: a JSON object per line, or YAML documents.
    #[arg(long, short = 'o', value_enum, default_value = "jsonl")]
    output: StreamFormat,
    /// The file to write [default: standard output]. It appears when it is complete, and only its owner can read it.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Write manifests for `kubectl apply`: without the fields that a server sets, without status, and only of objects that were
    /// not made by a controller or by the cluster itself.
    #[arg(long)]
    manifests: bool,
    // Last, because their headings in the help apply to all flags after them.
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    selection: Selection,
}

impl super::Command for Options {
    const NAME: &str = "export";
    type Failure = String;

    fn run(&self) -> Result<(), String> {
        let source = ApiObjects::new(self.connection.api_server()?, false);
        let mut progress = Progress::new();
        let Some(path) = self.to.as_ref().filter(|path| path.as_os_str() != "-") else {
            let output = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
            let writer = ObjectWriter::new(output, self.output);
            return run_until_interrupted(self.export(&source, writer, &mut progress)).map(|_| ());
        };
        let describe = |error: io::Error| format!("{}: {error}", path.display());
        let file = OutputFile::create(path).map_err(describe)?;
        let writer = ObjectWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file), self.output);
        let output = run_until_interrupted(self.export(&source, writer, &mut progress))?;
        let file = output.into_inner().map_err(|error| describe(error.into_error()))?;
        file.publish().map_err(describe)
    }
}

/// What was exported, and what was not.
#[derive(Default)]
struct Summary {
    objects: u64,
    resources: u64,
    /// How many objects were left out, by reason.
    omitted: BTreeMap<&'static str, u64>,
    /// Resources of which later pages show a later state.
    inconsistent: Vec<String>,
    /// Resources of extension servers.
    aggregated: Vec<String>,
}

impl Options {
    async fn export<W: Write>(
        &self,
        source: &impl Source,
        mut writer: ObjectWriter<W>,
        progress: &mut Progress,
    ) -> Result<W, String> {
        let mut summary = Summary::default();
        for resource in self.selected_resources(source, &mut summary).await? {
            let before = summary.objects;
            for namespace in self.selection.namespaces_of(&resource) {
                let listing = Listing { resource: &resource, namespace, selection: &self.selection };
                self.export_listing(source, &listing, &mut writer, &mut summary, progress).await?;
            }
            summary.resources += u64::from(summary.objects > before);
        }
        let bytes = writer.bytes();
        let output = writer.finish().map_err(|error| format!("cannot write: {error}"))?;
        summary.report(bytes, progress);
        Ok(output)
    }

    /// The resources to export, those first that others need: so the output can also be applied from its beginning to its end.
    async fn selected_resources(
        &self,
        source: &impl Source,
        summary: &mut Summary,
    ) -> Result<Vec<Resource>, String> {
        let all = source.resources().await?;
        if let [first, ..] = self.selection.unmatched(&all).as_slice() {
            return Err(format!("no resource of the server that can be exported is {first}"));
        }
        let mut resources: Vec<Resource> =
            all.into_iter().filter(|resource| self.selection.includes_resource(resource)).collect();
        resources.retain(|resource| {
            let is_exported = !resource.is_aggregated || self.selection.names_resource(resource);
            if !is_exported {
                summary.aggregated.push(resource.full_name());
            }
            is_exported
        });
        let phase = |resource: &Resource| Phase::new(&resource.group, &resource.kind, resource.is_namespaced);
        resources.sort_by_cached_key(|resource| (phase(resource), resource.full_name()));
        Ok(resources)
    }

    async fn export_listing<W: Write>(
        &self,
        source: &impl Source,
        listing: &Listing<'_>,
        writer: &mut ObjectWriter<W>,
        summary: &mut Summary,
        progress: &mut Progress,
    ) -> Result<(), String> {
        let name = listing.resource.full_name();
        let mut token = None;
        loop {
            progress.show(format_args!("{name}: {}", count(summary.objects, "object")));
            let page = source.list(listing, token.as_deref()).await?;
            if page.is_inconsistent && summary.inconsistent.last() != Some(&name) {
                summary.inconsistent.push(name.clone());
            }
            for object in page.objects {
                if !self.selection.includes_object(&object) {
                    continue;
                }
                if let Some(object) = self.exported_form(object, summary) {
                    writer.write(object).map_err(|error| format!("cannot write: {error}"))?;
                    summary.objects += 1;
                }
            }
            token = page.next;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// The object as it is written; `None` if it is left out.
    fn exported_form(&self, object: Value, summary: &mut Summary) -> Option<Value> {
        if !self.manifests {
            return Some(object);
        }
        match reason_to_omit(&object) {
            Some(reason) => {
                *summary.omitted.entry(reason).or_default() += 1;
                None
            }
            None => Some(manifest::from_object(object)),
        }
    }
}

impl Summary {
    fn report(&self, bytes: u64, progress: &mut Progress) {
        let (objects, resources) = (count(self.objects, "object"), count(self.resources, "resource"));
        progress.line(format_args!("exported {objects} of {resources}, {bytes} bytes"));
        for (reason, number) in &self.omitted {
            progress.line(format_args!("left out {}: {reason}", count(*number, "object")));
        }
        if !self.aggregated.is_empty() {
            let names = self.aggregated.join(", ");
            progress.line(format_args!("left out, because extension servers have them: {names}"));
        }
        if !self.inconsistent.is_empty() {
            let names = self.inconsistent.join(", ");
            progress.line(format_args!(
                "changed while they were listed, for so long that the server no longer knows their state at the beginning; \
                 the later objects are newer: {names}"
            ));
        }
    }
}

#[cfg(test)]
mod tests;
