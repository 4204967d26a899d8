//! Value types of flags, with their parsers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_types::limits::RANGE_ITEMS;

use crate::limits::QUOTA_MIN_BYTES;

/// Parses a Go duration: `300ms`, `1m30s`, `1.5h`, `0`.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("\"{text}\" is not a duration such as 300ms, 90s or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(format!("\"{text}\" is negative"));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let component = Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| invalid())?;
        total = total.checked_add(component).ok_or_else(invalid)?;
        rest = tail;
    }
    Ok(total)
}

/// Parses a number of bytes, such as `512Mi` or `1073741824`.
pub fn byte_quantity(text: &str) -> Result<u64, String> {
    let bytes = Quantity::parse(text).ok().and_then(|quantity| quantity.whole());
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("\"{text}\" is not a number of bytes such as 512Mi"))
}

/// Parses the quota of a store: none, or enough for what a server stores of its own.
pub fn store_quota(text: &str) -> Result<u64, String> {
    match byte_quantity(text)? {
        bytes @ 1..QUOTA_MIN_BYTES => {
            Err(format!("{bytes} bytes are too few: use 0 for no quota, or at least 8Mi"))
        }
        bytes => Ok(bytes),
    }
}

/// Parses a boolean as Go does.
pub fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    }
}

/// A CIDR, such as `10.0.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpRange(pub IpNet);

impl IpRange {
    /// The first usable address: that of the `kubernetes` service.
    pub fn first_service(&self) -> IpAddr {
        match self.0.network() {
            IpAddr::V4(network) => Ipv4Addr::from_bits(network.to_bits() | 1).into(),
            IpAddr::V6(network) => Ipv6Addr::from_bits(network.to_bits() | 1).into(),
        }
    }

    /// Refuses a range that is too large for a record of its addresses, in the words of the reference. `index`: its place in the
    /// flag.
    pub fn validate_size(&self, index: usize) -> Result<(), String> {
        let bits = self.0.max_prefix_len();
        let least = u32::from(bits) - RANGE_ITEMS.ilog2();
        if u32::from(self.0.prefix_len()) >= least {
            return Ok(());
        }
        let entry = if index == 0 { String::new() } else { format!("[{index}]") };
        Err(format!(
            "specified --service-cluster-ip-range{entry} is too large; for {bits}-bit addresses, the mask must be >= {least}"
        ))
    }
}

impl FromStr for IpRange {
    type Err = String;

    fn from_str(text: &str) -> Result<IpRange, String> {
        let invalid = || format!("\"{text}\" is not an address range such as 10.0.0.0/24");
        // As lenient as for ranges in objects, which is how the reference reads this flag too.
        let range = names::parse_cidr(text).ok_or_else(invalid)?;
        Ok(IpRange(range.trunc()))
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ports from `first` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// Whether a port is in the range.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<PortRange, String> {
        let invalid = || format!("\"{text}\" is not a port range such as 30000-32767 or 30000+100");
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| invalid());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (number(first)?, number(last)?)
        } else if let Some((first, more)) = text.split_once('+') {
            let first = number(first)?;
            (first, first.checked_add(number(more)?).ok_or_else(invalid)?)
        } else {
            let port = number(text)?;
            (port, port)
        };
        if first > last {
            return Err(invalid());
        }
        Ok(PortRange { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// One entry of `--runtime-config`: an API version, or a level such as `api/all`, on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeSetting {
    /// A group/version, a group/version/resource, or one of `api/all`, `api/ga`, `api/beta`, `api/alpha`, `api/legacy`.
    pub key: String,
    /// Whether it is enabled.
    pub enabled: bool,
}

impl FromStr for RuntimeSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<RuntimeSetting, String> {
        let (key, value) = text.split_once('=').unwrap_or((text, "true"));
        let key = key.trim();
        if key.is_empty() {
            return Err(format!("\"{text}\" is not an entry such as api/beta=true or batch/v1=false"));
        }
        let value = value.trim();
        let enabled = if value.is_empty() { true } else { go_bool(value)? };
        Ok(RuntimeSetting { key: key.to_owned(), enabled })
    }
}

/// The values of a list flag; a single empty value counts as none.
pub fn non_empty_list(values: &[String]) -> Vec<String> {
    match values {
        [value] if value.is_empty() => Vec::new(),
        values => values.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn store_quota_has_room_for_the_server_itself() {
        assert_eq!((store_quota("0"), store_quota("8Mi")), (Ok(0), Ok(8 << 20)));
        assert_eq!(
            store_quota("64Ki").unwrap_err(),
            "65536 bytes are too few: use 0 for no quota, or at least 8Mi"
        );
        assert!(store_quota("much").is_err());
    }

    #[test]
    fn go_durations_are_parsed() {
        let table = [
            ("0", 0),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("300ms", 300),
            ("+2s", 2_000),
            ("1h0m0.5s", 3_600_500),
        ];
        for (text, millis) in table {
            assert_eq!(go_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "-3s", "1x", "s", "1..2s", "99999999999999999999h", "+", "1 s"] {
            assert!(go_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ip_range_yields_first_service_address() {
        let range: IpRange = "10.96.7.9/16".parse().unwrap();
        assert_eq!(range.to_string(), "10.96.0.0/16");
        assert_eq!(range.first_service().to_string(), "10.96.0.1");
        let range: IpRange = "010.96.0.0/024".parse().unwrap();
        assert_eq!(range.to_string(), "10.96.0.0/24");
        let range: IpRange = "fd00::/108".parse().unwrap();
        assert_eq!(range.first_service().to_string(), "fd00::1");
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", "/"] {
            assert!(text.parse::<IpRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn port_range_has_three_spellings() {
        for (text, first, last) in [("1-5", 1, 5), ("30000+100", 30_000, 30_100), ("80", 80, 80)] {
            assert_eq!(text.parse(), Ok(PortRange { first, last }), "{text}");
        }
        for text in ["5-1", "65000+1000", "70000", "", "a-b"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn runtime_config_key_without_value_is_enabled() {
        for (text, key, enabled) in
            [("api/all", "api/all", true), ("batch/v1=", "batch/v1", true), ("v1=false", "v1", false)]
        {
            assert_eq!(text.parse(), Ok(RuntimeSetting { key: key.into(), enabled }));
        }
        assert!("=true".parse::<RuntimeSetting>().is_err());
        assert!("v1=maybe".parse::<RuntimeSetting>().is_err());
    }

    proptest! {
        #[test]
        fn flag_value_parsers_never_panic(text in ".{0,24}") {
            let _ = go_duration(&text);
            let _ = text.parse::<IpRange>();
            let _ = text.parse::<PortRange>();
            let _ = text.parse::<RuntimeSetting>();
        }
    }
}
