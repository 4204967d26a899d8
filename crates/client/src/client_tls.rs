//! The TLS settings of outgoing connections. They speak HTTP/1.1, unless HTTP/2 is offered for one.

use openssl::error::ErrorStack;
use openssl::ssl::SslContext;
use pilothouse_client_tls::Protocol;
pub use pilothouse_client_tls::{TrustedCas, client, offer_http2, speaks_http2};

/// Makes the context of connections. `identity` is the client certificate with its intermediates, and its key, as PEM.
pub fn context(trusted: TrustedCas, identity: Option<(&[u8], &[u8])>) -> Result<SslContext, ErrorStack> {
    pilothouse_client_tls::context(trusted, identity, Protocol::Http1)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use openssl::ssl::{SslAcceptor, SslMethod};

    use super::*;

    /// How HTTP uploads to a slow reader: while a write is pending, data is appended, and the buffer may move.
    #[test]
    fn tls_write_can_be_retried_from_a_longer_buffer() {
        const PIECE: usize = 64 << 10;
        let (near, far) = UnixStream::pair().unwrap();
        let (start, started) = mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let (certificate, key) = crate::testing::self_signed("reader");
            let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
            acceptor.set_certificate(&certificate).unwrap();
            acceptor.set_private_key(&key).unwrap();
            let mut stream = acceptor.build().accept(far).unwrap();
            started.recv().unwrap();
            let mut read = Vec::new();
            let _ended_without_goodbye = stream.read_to_end(&mut read);
            read.len()
        });
        let context = context(TrustedCas::Anybody, None).unwrap();
        let mut stream = client(&context, "reader", false).unwrap().connect(near).unwrap();
        stream.get_ref().set_nonblocking(true).unwrap();
        let mut written = 0;
        let error = loop {
            match stream.write(&[0; PIECE]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        start.send(()).unwrap();
        stream.get_ref().set_nonblocking(false).unwrap();
        written += stream.write(&[0; 2 * PIECE]).unwrap();
        drop(stream);
        assert_eq!(reader.join().unwrap(), written);
    }
}
