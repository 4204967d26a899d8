//! The floor: a bare actix-web handler over the same TLS that returns a constant. No server on actix-web is faster.

use std::convert::Infallible;

use actix::{Actor, Context, Handler, Message};
use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use futures::StreamExt as _;
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{SslAcceptor, SslAcceptorBuilder, SslMethod};
use openssl::x509::{X509, X509NameBuilder};

/// Larger bodies are streamed in chunks of this size, as a list is.
const CHUNK_BYTES: usize = 64 << 10;

/// Serves `bytes` bytes for every request until the process is ended. Prints its port.
pub fn serve(bytes: usize) {
    let body = Bytes::from(vec![b'x'; bytes.min(CHUNK_BYTES)]);
    actix_web::rt::System::new().block_on(async move {
        let server = HttpServer::new(move || {
            let body = body.clone();
            let response = move || {
                let body = body.clone();
                async move {
                    let mut response = HttpResponse::Ok();
                    response.content_type("application/json");
                    if bytes <= CHUNK_BYTES {
                        return response.body(body);
                    }
                    let chunks =
                        (0..bytes.div_ceil(CHUNK_BYTES)).map(move |_| Ok::<_, Infallible>(body.clone()));
                    response.streaming(futures::stream::iter(chunks))
                }
            };
            App::new().default_service(web::to(response))
        })
        .tcp_nodelay(true)
        .bind_openssl("127.0.0.1:0", acceptor())
        .unwrap();
        println!("{}", server.addrs()[0].port());
        server.run().await.unwrap();
    });
}

/// Owns the small response of the bare handler of the ceiling bench.
struct Owner;

impl Actor for Owner {
    type Context = Context<Owner>;
}

#[derive(Message)]
#[rtype(result = "String")]
struct Read;

impl Handler<Read> for Owner {
    type Result = String;

    fn handle(&mut self, _: Read, _: &mut Self::Context) -> String {
        "{}\n".to_owned()
    }
}

/// Serves the requests of the ceiling bench with the transport alone: a collection is a stream of `collection` bytes, a request body
/// is read and dropped, and every other response is a small constant that an actor on another thread owns. Prints its port.
pub fn serve_ceiling(collection: usize) {
    let chunk = Bytes::from(vec![b'x'; CHUNK_BYTES]);
    actix_web::rt::System::new().block_on(async move {
        let owner = Owner::start_in_arbiter(&actix::Arbiter::new().handle(), |_| Owner);
        let server = HttpServer::new(move || {
            let (chunk, owner) = (chunk.clone(), owner.clone());
            let list = move || {
                let chunk = chunk.clone();
                let chunks =
                    (0..collection.div_ceil(CHUNK_BYTES)).map(move |_| Ok::<_, Infallible>(chunk.clone()));
                async { HttpResponse::Ok().streaming(futures::stream::iter(chunks)) }
            };
            let drop_body = move |mut body: web::Payload| {
                let owner = owner.clone();
                async move {
                    while let Some(Ok(_)) = body.next().await {}
                    HttpResponse::Ok().body(owner.send(Read).await.unwrap())
                }
            };
            let collections = web::get().to(list);
            App::new().route("/{any:.*}/configmaps", collections).default_service(web::to(drop_body))
        })
        .tcp_nodelay(true)
        .bind_openssl("127.0.0.1:0", acceptor())
        .unwrap();
        println!("{}", server.addrs()[0].port());
        server.run().await.unwrap();
    });
}

/// TLS with a certificate made for this run.
pub fn acceptor() -> SslAcceptorBuilder {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "localhost").unwrap();
    let name = name.build();
    let mut certificate = X509::builder().unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_subject_name(&name).unwrap();
    certificate.set_issuer_name(&name).unwrap();
    certificate.set_serial_number(&BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap()).unwrap();
    certificate.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    certificate.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    certificate.set_pubkey(&key).unwrap();
    certificate.sign(&key, MessageDigest::sha256()).unwrap();
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    acceptor.set_private_key(&key).unwrap();
    acceptor.set_certificate(&certificate.build()).unwrap();
    acceptor
}
