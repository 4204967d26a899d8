//! /debug/flags: the flags that can be changed at run time, which is only the log level.

use actix_web::http::{Method, StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use futures::StreamExt as _;

use crate::limits::FLAG_BYTES;
use crate::telemetry;

const ROOT: &str = "/debug/flags";
const VERBOSITY: &str = "/debug/flags/v";

/// Whether this is a path below /debug/flags.
pub fn is_flag(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Serves /debug/flags.
pub async fn respond(request: &HttpRequest, payload: Payload, path: &str) -> HttpResponse {
    if path != VERBOSITY {
        return HttpResponse::Ok().content_type("text/html; charset=utf-8").body(index());
    }
    if *request.method() != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    }
    match read(payload).await.and_then(|body| set(&body)) {
        Ok(message) => plain(StatusCode::OK, &message),
        Err(error) => plain(StatusCode::BAD_REQUEST, &error),
    }
}

async fn read(mut payload: Payload) -> Result<String, String> {
    let mut body = Vec::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| format!("error reading request body: {error}"))?;
        body.extend_from_slice(&chunk);
        if body.len() > FLAG_BYTES {
            return Err("error reading request body: it is too long".to_owned());
        }
    }
    String::from_utf8(body).map_err(|_| "error reading request body: it is no text".to_owned())
}

fn set(body: &str) -> Result<String, String> {
    telemetry::set_verbosity(verbosity(body)?)?;
    Ok(format!("successfully set klog.logging.verbosity to {body}"))
}

/// Parses a log level. Errors are worded as Go words them.
fn verbosity(body: &str) -> Result<u32, String> {
    let is_number = !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_digit());
    let problem = if is_number { "value out of range" } else { "invalid syntax" };
    let level = body.parse().ok().filter(|_| is_number);
    level.ok_or_else(|| {
        format!("strconv.ParseUint: parsing {}: {problem}", pilothouse_apimachinery::field::quoted(body))
    })
}

fn index() -> String {
    "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n<table>\n\n\
     <tr>v<br>\n\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n"
        .to_owned()
}

fn plain(code: StatusCode, text: &str) -> HttpResponse {
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, "text/plain"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_level_must_be_a_number() {
        assert_eq!(verbosity("4"), Ok(4));
        let error_of = |body| verbosity(body).unwrap_err();
        assert_eq!(error_of("x"), "strconv.ParseUint: parsing \"x\": invalid syntax");
        assert_eq!(error_of("-1"), "strconv.ParseUint: parsing \"-1\": invalid syntax");
        assert_eq!(error_of("+1"), "strconv.ParseUint: parsing \"+1\": invalid syntax");
        assert_eq!(error_of(""), "strconv.ParseUint: parsing \"\": invalid syntax");
        assert_eq!(error_of("4294967296"), "strconv.ParseUint: parsing \"4294967296\": value out of range");
    }

    #[test]
    fn debug_flags_includes_paths_below_it() {
        assert!(is_flag("/debug/flags") && is_flag("/debug/flags/") && is_flag("/debug/flags/v"));
        assert!(!is_flag("/debug/flagsv") && !is_flag("/debug"));
    }
}
