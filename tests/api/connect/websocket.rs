//! WebSocket frames and upgrades of a client.

use super::*;

/// A masked frame of WebSocket.
pub fn masked_frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82];
    match u8::try_from(bytes.len()) {
        Ok(short @ 0..=125) => frame.push(0x80 | short),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[9, 8, 7, 6]);
    frame.extend(bytes.iter().zip([9, 8, 7, 6].iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// The next frame that the server sends: its kind and content.
pub fn read_frame(connection: &mut Connection) -> (u8, Vec<u8>) {
    let deadline = Deadline::after(TIMEOUT);
    let head = connection.read_bytes(2, deadline).unwrap();
    let length = match head[1] {
        126 => {
            usize::from(u16::from_be_bytes(connection.read_bytes(2, deadline).unwrap().try_into().unwrap()))
        }
        short => usize::from(short),
    };
    (head[0] & 15, connection.read_bytes(length, deadline).unwrap())
}

pub fn websocket_headers(protocol: &str) -> [(&str, &str); 5] {
    [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", protocol),
    ]
}

impl Fixture {
    pub fn open_websocket(&self, path: &str, protocol: &str) -> (Connection, String) {
        let mut connection = self.admin.raw();
        let head = self.admin.head("GET", path, &websocket_headers(protocol));
        connection.send(format!("{head}\r\n").as_bytes()).unwrap();
        let head = connection.head(Deadline::after(TIMEOUT)).unwrap();
        assert_eq!(head.status, 101, "{head:?}");
        assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let protocol = head.header("sec-websocket-protocol").unwrap_or_default().to_owned();
        (connection, protocol)
    }
}
