//! /statusz and /flagz: a running server in plain text, for people. Each has its own feature gate.

use std::collections::BTreeMap;
use std::time::Duration;

use actix_web::HttpResponse;
use jiff::tz::TimeZone;
use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;

use super::render::{PLAIN_TEXT, plain};

const STATUS: &str = "/statusz";
const FLAGS: &str = "/flagz";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
                       and is for debugging purposes only.";

/// The pages that are served.
#[derive(Default)]
pub struct DebugPages {
    /// When the server started, for /statusz.
    pub started: Option<Timestamp>,
    /// The text of /flagz.
    pub flags: Option<String>,
}

impl DebugPages {
    /// The paths that are served.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        let status = self.started.map(|_| STATUS);
        let flags = self.flags.as_ref().map(|_| FLAGS);
        status.into_iter().chain(flags)
    }

    /// Serves a path; `None` if it is not one of these pages.
    pub fn respond(
        &self,
        path: &str,
        accept: &str,
        release: &Release,
        now: Timestamp,
    ) -> Option<HttpResponse> {
        let text = match (path, self.started, &self.flags) {
            (STATUS, Some(started), _) => status_page(release, started, now),
            (FLAGS, _, Some(flags)) => flags.clone(),
            _ => return None,
        };
        Some(match accepts_text(accept) {
            true => HttpResponse::Ok().content_type(PLAIN_TEXT).body(text),
            false => plain(406, "media type not acceptable, must be: text/plain\n".to_owned()),
        })
    }
}

fn status_page(release: &Release, started: Timestamp, now: Timestamp) -> String {
    let build = release.build();
    let version = build.git_version.trim_start_matches('v').split('+').next().unwrap_or_default();
    format!(
        "\nkube-apiserver statusz\n{WARNING}\n\nStarted: {}\nUp: {}\nGo version: {}\nBinary version: {version}\n\
         Emulation version: {}.{}\n",
        date(started),
        span(now.since(started)),
        build.go_version,
        build.emulation_major,
        build.emulation_minor,
    )
}

fn date(time: Timestamp) -> String {
    let time = jiff::Timestamp::from_second(time.unix_seconds()).unwrap_or_default();
    time.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S %Z %Y").to_string()
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The text of /flagz: every flag and its value.
pub fn flags_page(flags: &BTreeMap<String, String>) -> String {
    let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("\nkube-apiserver flags\n{WARNING}\n\n{lines}")
}

/// Whether an Accept header allows plain text. As in the reference, a missing one does not.
fn accepts_text(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let Some((main_type, subtype)) = parts.next().and_then(|media| media.split_once('/')) else {
            return false;
        };
        let mut parameters = parts.filter(|parameter| !parameter.starts_with("q="));
        matches!(main_type, "text" | "*")
            && matches!(subtype, "plain" | "*")
            && parameters.all(|parameter| parameter.eq_ignore_ascii_case("charset=utf-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_pages_require_accept_of_plain_text() {
        for accept in ["text/plain", "*/*", "application/json, */*", "text/plain; charset=UTF-8;q=0.5"] {
            assert!(accepts_text(accept), "{accept}");
        }
        for accept in ["", "application/json", "text/html", "text/plain;version=1"] {
            assert!(!accepts_text(accept), "{accept}");
        }
    }

    #[test]
    fn statusz_has_start_time_and_uptime() {
        let started = Timestamp::from_unix(1_700_000_000);
        let page = status_page(&Release::default(), started, started.plus(Duration::from_secs(3_723)));
        let expected = "\nStarted: Tue Nov 14 22:13:20 UTC 2023\nUp: 1 hr 02 min 03 sec\nGo version: none\n\
                      Binary version: 1.33.12\nEmulation version: 1.33\n";
        assert!(
            page.starts_with("\nkube-apiserver statusz\nWarning: ") && page.ends_with(expected),
            "{page}"
        );
    }
}
