//! /debug/actors: what each actor, queue and thread does now. Plain text for people, JSON for whoever asks for that alone.

use std::fmt::Write as _;

use actix_web::HttpResponse;
use pilothouse_types::activity::{ActorReport, QueueDepth, ServerActivity, SlowWatch, ThreadReport};
use serde_json::{Map, Value, json};

use super::render::PLAIN_TEXT;
use super::worker::Worker;

/// The path.
pub const PATH: &str = "/debug/actors";
/// A second has so many clock ticks: the kernel counts in this unit towards programs, on every architecture that this server runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Serves the page.
pub async fn respond(worker: &Worker, accept: &str) -> HttpResponse {
    let directory = &worker.shared.health.directory;
    let activity = worker.shared.debug.activity.observe(directory, &worker.backend.clock).await;
    if prefers_json(accept) {
        return HttpResponse::Ok().content_type("application/json").body(to_json(&activity).to_string());
    }
    HttpResponse::Ok().content_type(PLAIN_TEXT).body(to_text(&activity))
}

/// Whether JSON is named and plain text is not.
fn prefers_json(accept: &str) -> bool {
    accept.contains("application/json") && !accept.contains("text/plain")
}

fn to_text(activity: &ServerActivity) -> String {
    let mut text = String::from("ACTORS\n");
    let _written =
        writeln!(text, "{:<14} {:<40} {:>11} {:<30} STATE", "KIND", "NAME", "ANSWERED IN", "THREAD");
    for ActorReport { kind, name, waited, activity } in &activity.actors {
        let waited =
            waited.map_or("no answer".to_owned(), |waited| format!("{:.3} ms", waited.as_secs_f64() * 1e3));
        let queues = activity.queues.iter().map(depth);
        let numbers = activity.numbers.iter().map(|(name, number)| format!("{name} {number}"));
        let state: Vec<String> = queues.chain(numbers).collect();
        let thread = &activity.thread;
        let _written = writeln!(text, "{kind:<14} {name:<40} {waited:>11} {thread:<30} {}", state.join(", "));
        for SlowWatch { type_name, unread } in &activity.slow_watches {
            let _written = writeln!(text, "{:<14} a watch of {type_name} has {unread} unread events", "");
        }
    }
    text.push_str("\nQUEUES\n");
    for queue in &activity.queues {
        let _written = writeln!(text, "{}", depth(queue));
    }
    let _written = writeln!(text, "\nTHREADS\n{:<8} {:<16} STATE {:>12}", "ID", "NAME", "CPU SECONDS");
    for ThreadReport { id, name, state, ticks } in &activity.threads {
        let seconds = *ticks as f64 / TICKS_PER_SECOND as f64;
        let _written = writeln!(text, "{id:<8} {name:<16} {state:<5} {seconds:>12.2}");
    }
    text
}

fn depth(queue: &QueueDepth) -> String {
    match queue.bound {
        Some(bound) => format!("{} {}/{bound}", queue.name, queue.depth),
        None => format!("{} {}", queue.name, queue.depth),
    }
}

fn to_json(activity: &ServerActivity) -> Value {
    let queues = |queues: &[QueueDepth]| -> Vec<Value> {
        let object = |queue: &QueueDepth| match queue.bound {
            Some(bound) => json!({"name": queue.name, "depth": queue.depth, "bound": bound}),
            None => json!({"name": queue.name, "depth": queue.depth}),
        };
        queues.iter().map(object).collect()
    };
    let actors: Vec<Value> = activity
        .actors
        .iter()
        .map(|ActorReport { kind, name, waited, activity }| {
            let numbers = activity.numbers.iter().map(|(name, number)| ((*name).to_owned(), json!(number)));
            let slow = activity.slow_watches.iter();
            json!({
                "kind": kind,
                "name": name,
                "answeredInSeconds": waited.map(|waited| waited.as_secs_f64()),
                "thread": activity.thread,
                "queues": queues(&activity.queues),
                "numbers": numbers.collect::<Map<String, Value>>(),
                "slowWatches": slow
                    .map(|watch| json!({"type": watch.type_name, "unread": watch.unread}))
                    .collect::<Vec<Value>>(),
            })
        })
        .collect();
    let threads = activity.threads.iter().map(|thread| {
        let seconds = thread.ticks as f64 / TICKS_PER_SECOND as f64;
        json!({"id": thread.id, "name": thread.name, "state": thread.state.to_string(), "cpuSeconds": seconds})
    });
    let threads: Vec<Value> = threads.collect();
    json!({"actors": actors, "queues": queues(&activity.queues), "threads": threads})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilothouse_types::activity::Activity;

    use super::*;

    fn example() -> ServerActivity {
        let described = Activity {
            thread: "worker".to_owned(),
            queues: vec![QueueDepth::bounded("writes", 1, 8)],
            numbers: vec![("objects", 3)],
            slow_watches: vec![SlowWatch { type_name: "pods".to_owned(), unread: 5 }],
        };
        let actor = |name: &str, waited, activity| ActorReport {
            kind: "store",
            name: name.to_owned(),
            waited,
            activity,
        };
        ServerActivity {
            actors: vec![
                actor("pods", Some(Duration::from_millis(2)), described),
                actor("nodes", None, Activity::default()),
            ],
            queues: vec![QueueDepth::unbounded("trims", 4)],
            threads: vec![ThreadReport { id: 7, name: "log".to_owned(), state: 'S', ticks: 150 }],
        }
    }

    #[test]
    fn text_has_a_line_for_everything() {
        let text = to_text(&example());
        let squeezed: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for expected in [
            "store pods 2.000 ms worker writes 1/8, objects 3",
            "a watch of pods has 5 unread events",
            "store nodes no answer",
            "trims 4",
            "7 log S 1.50",
        ] {
            assert!(squeezed.iter().any(|line| line == expected), "{expected}: {text}");
        }
    }

    #[test]
    fn json_has_the_same() {
        let json = to_json(&example());
        assert_eq!(json["actors"][0]["answeredInSeconds"], 0.002);
        assert_eq!(json["actors"][0]["queues"][0], json!({"name": "writes", "depth": 1, "bound": 8}));
        assert_eq!(json["actors"][0]["slowWatches"][0]["unread"], 5);
        assert_eq!(json["actors"][1]["answeredInSeconds"], Value::Null);
        assert_eq!(json["queues"][0], json!({"name": "trims", "depth": 4}));
        assert_eq!(json["threads"][0]["cpuSeconds"], 1.5);
    }

    #[test]
    fn json_is_for_those_who_ask_for_it_alone() {
        assert!(prefers_json("application/json"));
        assert!(!prefers_json("*/*") && !prefers_json("") && !prefers_json("text/plain, application/json"));
    }
}
