//! Pages that show the inside of the server: profiles, actors, flags, requests of others.

use crate::support::{Client, Server};

use super::alice;

const PAGES: [&str; 14] = [
    "/debug/actors",
    "/debug/api_priority_and_fairness/dump_requests",
    "/debug/flags",
    "/debug/flags/v",
    "/debug/pprof",
    "/debug/pprof/",
    "/debug/pprof/block",
    "/debug/pprof/cmdline",
    "/debug/pprof/heap",
    "/debug/pprof/mutex",
    "/debug/pprof/profile?seconds=1",
    "/flagz",
    "/metrics",
    "/statusz",
];

/// CVE-2019-11248: /debug/pprof was open to everybody on a port for health checks.
#[test]
fn debug_pages_need_authorization() {
    let gates = "--feature-gates=ComponentFlagz=true,ComponentStatusz=true";
    let server = Server::with_flags(&["--engine=memory", gates, "--contention-profiling"]);
    let is_refused = |client: &mut Client, method: &str, page: &str| {
        let response = client.request(method, page, &[("Accept", "*/*")], b"");
        response.expect_error(403, "Forbidden");
    };
    for page in PAGES {
        for method in ["GET", "POST"] {
            is_refused(&mut server.anonymous(), method, page);
            is_refused(&mut alice(&server), method, page);
        }
    }
    let mut admin = server.admin();
    assert_eq!(admin.get("/debug/actors").status, 200, "the pages exist");
    // Flags may hold what only the machine should know: the command line is on the socket alone.
    assert_eq!(admin.get("/debug/pprof/cmdline").status, 404);
    let server = Server::with_flags(&["--engine=memory", "--profiling=false"]);
    let mut admin = server.admin();
    for page in PAGES.iter().filter(|page| page.contains("pprof") || page.contains("actors")) {
        assert_eq!(admin.get(page).status, 404, "{page}");
    }
}
