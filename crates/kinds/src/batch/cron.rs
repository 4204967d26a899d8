//! The syntax of cron schedules: five fields, or a macro such as `@daily`.

use pilothouse_apimachinery::time_zone;

struct Field {
    lowest: u32,
    highest: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Field; 5] = [
    Field { lowest: 0, highest: 59, names: &[] },
    Field { lowest: 0, highest: 23, names: &[] },
    Field { lowest: 1, highest: 31, names: &[] },
    Field { lowest: 1, highest: 12, names: &MONTHS },
    Field { lowest: 0, highest: 6, names: &DAYS },
];

/// Checks a schedule. The error is the reference's.
pub fn parse(schedule: &str) -> Result<(), String> {
    let mut rest = schedule;
    if rest.starts_with("TZ=") || rest.starts_with("CRON_TZ=") {
        let (zone, tail) = rest.split_once(' ').ok_or_else(|| wrong_field_count(schedule))?;
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if !time_zone::is_known(zone) && zone != "Local" {
            return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        rest = tail.trim();
    }
    if rest.starts_with('@') {
        return parse_macro(rest);
    }
    let parts: Vec<&str> = rest.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        return Err(wrong_field_count(rest));
    }
    parts.iter().zip(&FIELDS).try_for_each(|(part, field)| {
        part.split(',').filter(|range| !range.is_empty()).try_for_each(|range| parse_range(range, field))
    })
}

fn wrong_field_count(text: &str) -> String {
    let parts: Vec<&str> = text.split_whitespace().collect();
    format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" "))
}

fn parse_macro(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_duration(duration) => Ok(()),
            Some(duration) => {
                Err(format!("failed to parse duration {text}: time: invalid duration \"{duration}\""))
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// Whether a string is a duration such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut has_part = false;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let Some((number, tail)) = rest.split_at_checked(digits) else { return false };
        if number.is_empty() || number == "." || number.matches('.').count() > 1 {
            return false;
        }
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let unit = units.iter().filter(|unit| tail.starts_with(**unit)).max_by_key(|unit| unit.len());
        let Some(unit) = unit else { return false };
        rest = tail.get(unit.len()..).unwrap_or_default();
        has_part = true;
    }
    has_part
}

fn parse_range(text: &str, field: &Field) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts.first().copied().unwrap_or_default().split('-').collect();
    let is_wildcard = matches!(ends.first(), Some(&"*" | &"?"));
    let (start, mut end) = if is_wildcard {
        (field.lowest, field.highest)
    } else {
        let start = number(ends.first().copied().unwrap_or_default(), field.names)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, number(end, field.names)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 && !is_wildcard {
                end = field.highest;
            }
            plain_number(step)?
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < field.lowest {
        return Err(format!("beginning of range ({start}) below minimum ({}): {text}", field.lowest));
    }
    if end > field.highest {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", field.highest));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn number(text: &str, names: &[&str]) -> Result<u32, String> {
    let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
    match named.and_then(|index| u32::try_from(index).ok()) {
        // Months count from 1, days of the week from 0.
        Some(index) => Ok(if names.len() == MONTHS.len() { index + 1 } else { index }),
        None => plain_number(text),
    }
}

fn plain_number(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(number);
    }
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        _ => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {}: invalid syntax",
            pilothouse_apimachinery::field::quoted(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_valid_schedules() {
        for schedule in [
            "* * * * *",
            "*/5 0-23/2 1,15 JAN-dec mon-fri",
            "@hourly",
            "@every 1h30m",
            "0 0 ? * 0",
            "5/15 * * * *",
            "TZ=UTC 0 0 * * *",
            "CRON_TZ=Europe/Berlin @daily",
        ] {
            assert_eq!(parse(schedule), Ok(()), "{schedule}");
        }
    }

    #[test]
    fn parse_reports_invalid_schedules() {
        let table = [
            ("bad", "expected exactly 5 fields, found 1: [bad]"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("TZ=Nope 0 0 * * *", "provided bad location Nope: unknown time zone Nope"),
        ];
        for (schedule, expected) in table {
            assert_eq!(parse(schedule), Err(expected.to_owned()), "{schedule}");
        }
    }
}
