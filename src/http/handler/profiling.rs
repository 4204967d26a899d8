//! /debug/pprof/: profiles that `go tool pprof` and collectors of profiles read. Paths, parameters and errors are those of Go's package.

use actix_web::HttpResponse;
use actix_web::http::{StatusCode, header};
use pilothouse_apimachinery::query::Query;

use crate::limits::{CPU_PROFILE_SECONDS, MAX_CPU_PROFILE_SECONDS};
use crate::profiles::Profiles;
use crate::profiles::contention::LockKind;
use crate::profiles::profile_proto::Profile;

use super::render::PLAIN_TEXT;

const ROOT: &str = "/debug/pprof/";
const HTML: &str = "text/html; charset=utf-8";

/// The profiles that are served, for the index.
const PROFILES: [(&str, &str); 4] = [
    ("profile", "Where processor time goes. ?seconds= is the length, 30 by default."),
    ("heap", "Who holds memory, by the memory ledger of the server: accounts, not stacks of allocations."),
    ("block", "Where threads wait for locks, with --contention-profiling."),
    ("mutex", "The same, only mutexes."),
];

/// Profiles of Go that have no meaning here, with the reasons.
const WITHOUT_MEANING: [(&str, &str); 5] = [
    ("allocs", "allocations are not counted; heap shows who holds memory"),
    ("goroutine", "there are no goroutines; /debug/actors shows what actors do"),
    ("symbol", "profiles contain the names of their functions"),
    ("threadcreate", "the creation of threads is not recorded"),
    ("trace", "there is no execution trace; /debug/actors shows what actors do"),
];

/// A page below /debug/pprof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page<'a> {
    /// The path without the slash.
    Redirect,
    /// The list of profiles.
    Index,
    /// A profile.
    Profile(&'a str),
}

/// The page at a path; `None` for paths that are not below /debug/pprof.
pub fn page(path: &str) -> Option<Page<'_>> {
    match path.strip_prefix(ROOT) {
        Some("") => Some(Page::Index),
        Some(name) => Some(Page::Profile(name)),
        None => (path == ROOT.trim_end_matches('/')).then_some(Page::Redirect),
    }
}

/// Serves a page.
pub async fn respond(profiles: &Profiles, page: Page<'_>, query: &Query<'_>) -> HttpResponse {
    match page {
        Page::Redirect => HttpResponse::Found()
            .insert_header((header::LOCATION, ROOT))
            .content_type(HTML)
            .body(format!("<a href=\"{ROOT}\">Found</a>.\n\n")),
        Page::Index => HttpResponse::Ok()
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .content_type(HTML)
            .body(index()),
        Page::Profile("profile") => cpu(profiles, query).await,
        Page::Profile(name) => match snapshot(profiles, name) {
            Ok(profile) => render(name, &profile, query),
            Err(reason) => error(StatusCode::NOT_FOUND, &reason),
        },
    }
}

async fn cpu(profiles: &Profiles, query: &Query<'_>) -> HttpResponse {
    let requested = query.get("seconds").and_then(|text| text.parse::<i64>().ok());
    let requested = requested.and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = requested.filter(|seconds| *seconds > 0).unwrap_or(CPU_PROFILE_SECONDS);
    if seconds > MAX_CPU_PROFILE_SECONDS {
        return error(StatusCode::BAD_REQUEST, "profile duration exceeds server's WriteTimeout");
    }
    match profiles.cpu(seconds).await {
        Ok(profile) => attachment("profile", &profile),
        Err(reason) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, &format!("Could not enable CPU profiling: {reason}"))
        }
    }
}

/// A profile of what is known already.
fn snapshot(profiles: &Profiles, name: &str) -> Result<Profile, String> {
    match name {
        "heap" => Ok(profiles.memory()),
        "block" => Ok(profiles.contention(&[LockKind::Mutex, LockKind::Read, LockKind::Write])),
        "mutex" => Ok(profiles.contention(&[LockKind::Mutex])),
        _ => {
            let reason = WITHOUT_MEANING.iter().find(|(other, _)| *other == name);
            Err(reason.map_or("Unknown profile".to_owned(), |(_, reason)| {
                format!("{name} is not served here: {reason}")
            }))
        }
    }
}

/// The command line of the process; its parts end with a zero byte.
pub fn command_line() -> HttpResponse {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    text(StatusCode::OK).body(arguments.join("\0"))
}

fn render(name: &str, profile: &Profile, query: &Query<'_>) -> HttpResponse {
    let is_difference = query.get("seconds").is_some_and(|seconds| !seconds.is_empty());
    let is_text =
        query.get("debug").and_then(|text| text.parse::<i64>().ok()).is_some_and(|level| level != 0);
    if is_difference {
        error(StatusCode::BAD_REQUEST, "\"seconds\" parameter is not supported for this profile type")
    } else if is_text {
        text(StatusCode::OK).body(profile.to_text())
    } else {
        attachment(name, profile)
    }
}

fn attachment(name: &str, profile: &Profile) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::CONTENT_TYPE, "application/octet-stream"))
        .insert_header((header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")))
        .body(profile.encode_compressed())
}

fn text(code: StatusCode) -> actix_web::HttpResponseBuilder {
    let mut builder = HttpResponse::build(code);
    builder
        .insert_header((header::CONTENT_TYPE, PLAIN_TEXT))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    builder
}

fn error(code: StatusCode, message: &str) -> HttpResponse {
    text(code).insert_header(("X-Go-Pprof", "1")).body(format!("{message}\n"))
}

fn index() -> String {
    let row = |(name, about): &(&str, &str)| {
        format!("<tr><td><a href=\"{name}\">{name}</a></td><td>{about}</td></tr>\n")
    };
    let rows: String = PROFILES.iter().map(row).collect();
    format!(
        "<html>\n<head>\n<title>{ROOT}</title>\n</head>\n<body>\n{ROOT}\n<table>\n{rows}</table>\n\
         <p>?debug=1 shows all but the first as text.</p>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_below_the_root() {
        assert_eq!(page("/debug/pprof"), Some(Page::Redirect));
        assert_eq!(page("/debug/pprof/"), Some(Page::Index));
        assert_eq!(page("/debug/pprof/heap"), Some(Page::Profile("heap")));
        assert_eq!((page("/debug/pprofs"), page("/debug/")), (None, None));
    }

    #[test]
    fn index_links_every_profile() {
        let index = index();
        assert!(PROFILES.iter().all(|(name, _)| index.contains(&format!("href=\"{name}\""))), "{index}");
    }
}
