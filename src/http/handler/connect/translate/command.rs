//! Translates the streams of exec and attach between a client's WebSocket and a kubelet's SPDY.

use std::io;

use pilothouse_api::connect::exit_status;
use pilothouse_api::connect::options::StreamOptions;
use pilothouse_client::upstream::Channel;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::spdy;
use crate::http::websocket::stream as websocket;
use crate::limits::{COMMAND_STATUS_BYTES, DISCONNECT_TIMEOUT, STREAMS_OPEN_TIMEOUT};

use super::negotiated_protocol;
use super::pongs::{self, Pings};

/// WebSocket channel numbers.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// SPDY stream ids of a command's streams; zero means not opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamIds {
    error_stream: u32,
    stdin: u32,
    stdout: u32,
    stderr: u32,
    resize: u32,
}

impl StreamIds {
    /// The streams that these options ask for, with their types, in the order that kubelets expect.
    fn plan(options: &StreamOptions) -> (StreamIds, Vec<(u32, &'static str)>) {
        let mut planned = Vec::new();
        let mut plan = |is_requested: bool, stream_type| {
            let id = if is_requested { u32::try_from(planned.len()).unwrap_or_default() * 2 + 1 } else { 0 };
            planned.extend(is_requested.then_some((id, stream_type)));
            id
        };
        let ids = StreamIds {
            error_stream: plan(true, "error"),
            stdin: plan(options.stdin, "stdin"),
            stdout: plan(options.stdout, "stdout"),
            stderr: plan(options.stderr && !options.tty, "stderr"),
            resize: plan(options.tty, "resize"),
        };
        (ids, planned)
    }
}

/// Copies the streams of a command until it has ended or the client has disconnected.
pub(super) async fn run<C>(client: C, mut channel: Channel, head: Vec<u8>, options: StreamOptions)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client = Mutex::new(websocket::Writer::new(to_client));
    // Clients wait for a first, empty message.
    let first = [(options.stdout, STDOUT), (options.stderr, STDERR), (true, ERROR)];
    let first = first
        .into_iter()
        .find_map(|(is_requested, channel_number)| is_requested.then_some(channel_number))
        .unwrap_or(ERROR);
    if client.lock().await.message(&[first], &[]).await.is_err() {
        return;
    }
    let protocol = negotiated_protocol(&channel);
    let (from_kubelet, to_kubelet) = tokio::io::split(channel.io());
    let mut endpoints = Endpoints {
        from_client: websocket::Reader::new(from_client),
        from_kubelet: spdy::Reader::new(from_kubelet),
        client,
        kubelet: Mutex::new(spdy::Writer::new(to_kubelet)),
    };
    let status = endpoints.copy_streams(&options, &protocol).await;
    let _ = timeout(DISCONNECT_TIMEOUT, endpoints.close(status)).await;
}

/// Both ends of a translated connection.
struct Endpoints<CR, CW, KR, KW> {
    from_client: websocket::Reader<CR>,
    from_kubelet: spdy::Reader<KR>,
    client: Mutex<websocket::Writer<CW>>,
    kubelet: Mutex<spdy::Writer<KW>>,
}

impl<CR, CW, KR, KW> Endpoints<CR, CW, KR, KW>
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    KR: AsyncRead + Unpin,
    KW: AsyncWrite + Unpin,
{
    /// Copies the streams. Returns the status of the command, or `None` if the client has gone.
    async fn copy_streams(&mut self, options: &StreamOptions, protocol: &str) -> Option<Vec<u8>> {
        let Endpoints { from_client, from_kubelet, client, kubelet } = self;
        let (client, kubelet) = (&*client, &*kubelet);
        let (ids, planned) = StreamIds::plan(options);
        let (client_pings, mut client_pinged) = pongs::ping_queue();
        let (kubelet_pings, mut kubelet_pinged) = pongs::ping_queue();
        let mut output = Output::new(ids, client, kubelet_pings);
        let conversation = async move {
            match timeout(STREAMS_OPEN_TIMEOUT, open(from_kubelet, kubelet, &planned, &mut output)).await {
                Err(_) => Some(exit_status::failure("the kubelet did not open the streams in time")),
                Ok(Err(error)) => {
                    Some(exit_status::failure(&format!("the kubelet did not open the streams: {error}")))
                }
                Ok(Ok(())) => tokio::select! {
                    output_result = outward(from_kubelet, output) => {
                        output_result.ok().map(|output_result| exit_status::from_final_message(protocol, &output_result))
                    }
                    () = inward(from_client, &client_pings, kubelet, &ids) => None,
                },
            }
        };
        let answering_pings = async {
            tokio::join!(
                pongs::to_client(&mut client_pinged, client),
                pongs::to_kubelet(&mut kubelet_pinged, kubelet)
            );
        };
        pongs::run_with_pongs(conversation, answering_pings).await
    }

    async fn close(&self, status: Option<Vec<u8>>) -> io::Result<()> {
        let mut client = self.client.lock().await;
        if let Some(status) = status {
            client.message(&[ERROR], &status).await?;
        }
        client.close().await?;
        self.kubelet.lock().await.close().await
    }
}

/// Copies a kubelet's output to the client.
struct Output<'a, W> {
    opened: StreamIds,
    /// Streams that are still open.
    open_streams: Vec<u32>,
    error_stream: Vec<u8>,
    client: &'a Mutex<websocket::Writer<W>>,
    pings: Pings<u32>,
}

impl<'a, W: AsyncWrite + Unpin> Output<'a, W> {
    fn new(ids: StreamIds, client: &'a Mutex<websocket::Writer<W>>, pings: Pings<u32>) -> Output<'a, W> {
        let mut open_streams: Vec<u32> = [ids.error_stream, ids.stdout, ids.stderr].into();
        open_streams.retain(|stream| *stream != 0);
        Output { opened: ids, open_streams, error_stream: Vec::new(), client, pings }
    }

    fn end(&mut self, stream: u32) {
        self.open_streams.retain(|open| *open != stream);
    }

    /// Handles one frame. An error means that the client has gone.
    async fn handle(&mut self, frame: spdy::SpdyFrame) -> io::Result<()> {
        match frame {
            spdy::SpdyFrame::Data(stream, bytes, last) => {
                self.pass(stream, &bytes).await?;
                if last {
                    self.end(stream);
                }
            }
            spdy::SpdyFrame::Reply(stream, true) | spdy::SpdyFrame::Reset(stream) => self.end(stream),
            // Odd ids would answer our own pings, and we send none.
            spdy::SpdyFrame::Ping(number) if number % 2 == 0 => self.pings.note(number),
            _ => {}
        }
        Ok(())
    }

    async fn pass(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        let channel_number = match stream {
            stream if stream == self.opened.error_stream => {
                let remaining = COMMAND_STATUS_BYTES - self.error_stream.len();
                self.error_stream.extend_from_slice(&bytes[..bytes.len().min(remaining)]);
                return Ok(());
            }
            stream if stream == self.opened.stdout => STDOUT,
            stream if stream == self.opened.stderr => STDERR,
            _ => return Ok(()),
        };
        match bytes {
            [] => Ok(()),
            bytes => self.client.lock().await.message(&[channel_number], bytes).await,
        }
    }
}

/// Opens the streams and waits until the kubelet has accepted all of them: it starts to read only then. Output that arrives
/// earlier is passed on.
async fn open<R, W, C>(
    from_kubelet: &mut spdy::Reader<R>,
    kubelet: &Mutex<spdy::Writer<W>>,
    planned: &[(u32, &'static str)],
    output: &mut Output<'_, C>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    C: AsyncWrite + Unpin,
{
    for (id, stream_type) in planned {
        kubelet.lock().await.open(*id, "streamtype", stream_type).await?;
    }
    let mut missing: Vec<u32> = planned.iter().map(|(id, _)| *id).collect();
    while !missing.is_empty() {
        let frame = from_kubelet.next().await?;
        match frame {
            spdy::SpdyFrame::Reply(stream, _) => missing.retain(|id| *id != stream),
            spdy::SpdyFrame::Reset(_) | spdy::SpdyFrame::GoAway => {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            _ => {}
        }
        output.handle(frame).await?;
    }
    Ok(())
}

/// Copies from kubelet to client until every stream has ended; returns the command's status. An error means that the client has
/// gone.
async fn outward<R, C>(from_kubelet: &mut spdy::Reader<R>, mut output: Output<'_, C>) -> io::Result<Vec<u8>>
where
    R: AsyncRead + Unpin,
    C: AsyncWrite + Unpin,
{
    while !output.open_streams.is_empty() {
        // A kubelet that disconnects has sent everything.
        let Ok(frame) = from_kubelet.next().await else { break };
        output.handle(frame).await?;
    }
    Ok(output.error_stream)
}

/// Copies from client to kubelet until the client has gone. It does not end when the kubelet stops reading: output may still be
/// on its way.
async fn inward<R, W>(
    from_client: &mut websocket::Reader<R>,
    pings: &Pings<Vec<u8>>,
    kubelet: &Mutex<spdy::Writer<W>>,
    opened: &StreamIds,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let stream_for = |channel_number: u8| match channel_number {
        STDIN => opened.stdin,
        RESIZE => opened.resize,
        _ => 0,
    };
    let mut channel_number = ERROR;
    // Streams that the client has closed: SPDY allows no data after that.
    let mut closed = Vec::new();
    while let Ok(frame) = from_client.next().await {
        let bytes = match frame {
            websocket::WebSocketFrame::Close => return,
            websocket::WebSocketFrame::Ping(bytes) => {
                pings.note(bytes);
                continue;
            }
            websocket::WebSocketFrame::Piece(first, mut bytes) => {
                if first {
                    channel_number = bytes.remove(0);
                }
                bytes
            }
        };
        let (stream, last) = match (channel_number, bytes.first()) {
            (CLOSE, Some(closed_channel)) => (stream_for(*closed_channel), true),
            (channel_number, Some(_)) => (stream_for(channel_number), false),
            (_, None) => continue,
        };
        if stream == 0 || closed.contains(&stream) {
            continue;
        }
        let _ = match last {
            true => {
                closed.push(stream);
                kubelet.lock().await.data(stream, &[], true).await
            }
            false => kubelet.lock().await.data(stream, &bytes, false).await,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};

    use super::*;

    /// Far longer than any of these tests takes: only a hang reaches it.
    const CAP: Duration = Duration::from_secs(20);

    #[test]
    fn spdy_streams_are_opened_in_the_order_kubelets_expect() {
        let all = StreamOptions { stdin: true, stdout: true, stderr: true, ..StreamOptions::default() };
        let (opened, planned) = StreamIds::plan(&all);
        assert_eq!(planned, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
        assert_eq!(opened, StreamIds { error_stream: 1, stdin: 3, stdout: 5, stderr: 7, resize: 0 });
        let (opened, planned) = StreamIds::plan(&StreamOptions { tty: true, ..all });
        assert_eq!(planned, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")]);
        assert_eq!((opened.stderr, opened.resize), (0, 7), "a terminal has one output");
    }

    type DuplexEndpoints = Endpoints<
        ReadHalf<DuplexStream>,
        WriteHalf<DuplexStream>,
        ReadHalf<DuplexStream>,
        WriteHalf<DuplexStream>,
    >;

    /// A translated connection through pipes of a few bytes, and its two ends.
    fn duplex_endpoints() -> (DuplexEndpoints, DuplexStream, DuplexStream) {
        let ((client, near), (far, kubelet)) = (duplex(64), duplex(64));
        let ((from_client, to_client), (from_kubelet, to_kubelet)) = (split(near), split(far));
        let endpoints = Endpoints {
            from_client: websocket::Reader::new(from_client),
            from_kubelet: spdy::Reader::new(from_kubelet),
            client: Mutex::new(websocket::Writer::new(to_client)),
            kubelet: Mutex::new(spdy::Writer::new(to_kubelet)),
        };
        (endpoints, client, kubelet)
    }

    fn reply(stream: u8, flags: u8) -> [u8; 12] {
        [0x80, 3, 0, 2, flags, 0, 0, 4, 0, 0, 0, stream]
    }

    fn data(stream: u8, bytes: &[u8], flags: u8) -> Vec<u8> {
        [&[0, 0, 0, stream, flags, 0, 0, bytes.len() as u8], bytes].concat()
    }

    /// Reads one SPDY frame: its type, zero for data, and its content.
    async fn frame(kubelet: &mut DuplexStream) -> (u8, Vec<u8>) {
        let mut head = [0; 8];
        kubelet.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; usize::from(head[6]) << 8 | usize::from(head[7])];
        kubelet.read_exact(&mut body).await.unwrap();
        (if head[0] == 0 { 0 } else { head[3] }, body)
    }

    #[actix_rt::test]
    async fn output_before_all_streams_are_open_is_not_lost() {
        let (mut endpoints, mut client, mut kubelet) = duplex_endpoints();
        let options = StreamOptions { stdout: true, stderr: true, ..StreamOptions::default() };
        let peers = async {
            for _ in 0..3 {
                assert_eq!(frame(&mut kubelet).await.0, 1);
            }
            kubelet.write_all(&reply(3, 0)).await.unwrap();
            kubelet.write_all(&data(3, b"early", 0)).await.unwrap();
            kubelet.write_all(&reply(5, 1)).await.unwrap();
            kubelet.write_all(&data(3, b"", 1)).await.unwrap();
            // The last reply ends the stream at once, so nothing is left to wait for.
            kubelet.write_all(&reply(1, 1)).await.unwrap();
        };
        let both = async { tokio::join!(endpoints.copy_streams(&options, "v4.channel.k8s.io"), peers).0 };
        let status = timeout(CAP, both).await.expect("every stream was opened, and has ended");
        assert_eq!(status, Some(exit_status::from_final_message("v4.channel.k8s.io", b"")));
        let mut out = [0; 8];
        client.read_exact(&mut out).await.unwrap();
        assert_eq!(out, *b"\x82\x06\x01early");
    }

    #[actix_rt::test]
    async fn ping_of_kubelet_that_reads_no_input_does_not_block_output() {
        let (mut endpoints, client, mut kubelet) = duplex_endpoints();
        let options = StreamOptions { stdin: true, stdout: true, ..StreamOptions::default() };
        let (mut from_server, mut to_server) = split(client);
        let peers = async {
            for stream in [1, 3, 5] {
                assert_eq!(frame(&mut kubelet).await.0, 1);
                kubelet.write_all(&reply(stream, 0)).await.unwrap();
            }
            // More than all pipes hold: the task that copies input blocks from here on.
            let input = [&[0x82, 0x80 | 126, 16, 0, 0, 0, 0, 0, STDIN][..], &[b'x'; 4_095]].concat();
            let pinging = async {
                for _ in 0..64 {
                    kubelet.write_all(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]).await.unwrap();
                    kubelet.write_all(&data(5, &[b'o'; 100], 0)).await.unwrap();
                }
                // It reads only now: all of the input, with pongs in between or behind.
                let (mut read, mut answered) = (0, false);
                while read < 4_095 || !answered {
                    match frame(&mut kubelet).await {
                        (0, bytes) => read += bytes.len(),
                        (kind, body) => answered |= kind == 6 && body == [0, 0, 0, 2],
                    }
                }
                for stream in [1, 5] {
                    kubelet.write_all(&data(stream, b"", 1)).await.unwrap();
                }
            };
            let reading = async {
                let mut left = 64 * 100;
                while left > 0 {
                    left -= usize::from(from_server.read_u8().await.unwrap() == b'o');
                }
            };
            tokio::join!(async { to_server.write_all(&input).await.unwrap() }, pinging, reading);
        };
        let both = async { tokio::join!(endpoints.copy_streams(&options, "v4.channel.k8s.io"), peers).0 };
        assert!(timeout(CAP, both).await.expect("nobody waits for ever").is_some());
    }

    #[actix_rt::test]
    async fn ping_of_client_that_reads_no_output_does_not_block_input() {
        let (mut endpoints, client, mut kubelet) = duplex_endpoints();
        let options = StreamOptions { stdin: true, stdout: true, ..StreamOptions::default() };
        let (mut from_server, mut to_server) = split(client);
        let peers = async {
            for stream in [1, 3, 5] {
                assert_eq!(frame(&mut kubelet).await.0, 1);
                kubelet.write_all(&reply(stream, 0)).await.unwrap();
            }
            // Output that nobody reads yet: the task that copies it blocks from here on.
            kubelet.write_all(&data(5, &[b'o'; 120], 0)).await.unwrap();
            let speaking = async {
                for _ in 0..64 {
                    to_server.write_all(&[0x89, 0x81, 0, 0, 0, 0, b'?']).await.unwrap();
                    to_server.write_all(&[0x82, 0x82, 0, 0, 0, 0, STDIN, b'x']).await.unwrap();
                }
                // It reads only now: pongs come among the output.
                let (mut read, mut answered) = (0, false);
                while read < 120 || !answered {
                    match from_server.read_u8().await.unwrap() {
                        b'o' => read += 1,
                        byte => answered |= byte == b'?',
                    }
                }
            };
            let hearing = async {
                for _ in 0..64 {
                    assert_eq!(frame(&mut kubelet).await, (0, b"x".to_vec()));
                }
            };
            tokio::join!(speaking, hearing);
            for stream in [1, 5] {
                kubelet.write_all(&data(stream, b"", 1)).await.unwrap();
            }
        };
        let both = async { tokio::join!(endpoints.copy_streams(&options, "v4.channel.k8s.io"), peers).0 };
        assert!(timeout(CAP, both).await.expect("nobody waits for ever").is_some());
    }

    #[actix_rt::test]
    async fn received_ping_is_answered_when_the_command_ends_at_once() {
        let options = StreamOptions { stdin: true, stdout: true, ..StreamOptions::default() };
        let ping_and_input = [0x89, 0x81, 0, 0, 0, 0, b'?', 0x82, 0x82, 0, 0, 0, 0, STDIN, b'x'];
        let accepted = [reply(1, 0), reply(3, 0), reply(5, 0)].concat();
        let kubelet_frames = [accepted, data(1, b"", 1), data(5, b"", 1)].concat();
        let mut read = 0;
        // Everything is there at once, and which part runs first is chance, so it is tried often.
        for _ in 0..200 {
            let (mut endpoints, mut client, mut kubelet) = duplex_endpoints();
            client.write_all(&ping_and_input).await.unwrap();
            kubelet.write_all(&kubelet_frames).await.unwrap();
            let copying = async {
                assert!(endpoints.copy_streams(&options, "v4.channel.k8s.io").await.is_some());
                drop(endpoints);
            };
            let (mut to_client, mut to_kubelet) = (Vec::new(), Vec::new());
            let all = async {
                let reading = client.read_to_end(&mut to_client);
                let ((), from_server, by_kubelet) =
                    tokio::join!(copying, reading, kubelet.read_to_end(&mut to_kubelet));
                from_server.and(by_kubelet)
            };
            timeout(CAP, all).await.expect("the command has ended").unwrap();
            if to_kubelet.ends_with(b"x") {
                read += 1;
                assert!(to_client.windows(3).any(|bytes| bytes == [0x8a, 1, b'?']), "{to_client:?}");
            }
        }
        assert!(read > 0, "the input behind the ping was never read");
    }
}
