//! The state of the cluster and of its members.

use bytes::Bytes;
use tonic::Streaming;

use super::Client;
use crate::error::{EndpointFailure, Error};
use crate::messages::{
    Alarm, AlarmAction, AlarmMember, AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use crate::methods::{self, SNAPSHOT};
use crate::transport::Connection;

impl Client {
    /// How the member in use is.
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        self.call(&methods::STATUS, StatusRequest {}).await
    }

    /// How every member of the settings is, in their order, over new connections. All are asked at once.
    pub async fn statuses(&self) -> Vec<Result<StatusResponse, Error>> {
        let pool = self.pool();
        let members = pool.endpoints().iter().enumerate().map(|(index, endpoint)| {
            let (pool, endpoint) = (pool.clone(), endpoint.clone());
            let (mut settings, url) = (pool.settings().clone(), endpoint.url.clone());
            settings.dial_timeout = settings.dial_timeout.min(self.request_timeout());
            let opened = pool.runtime().spawn(async move {
                let connection = Connection::open(endpoint, index, &settings).await?;
                connection.status.ok_or_else(|| "it does not tell its status".to_owned())
            });
            async move {
                let status = opened.await.unwrap_or_else(|error| Err(error.to_string()));
                status.map_err(|reason| Error::NotReachable(vec![EndpointFailure { endpoint: url, reason }]))
            }
        });
        futures::future::join_all(members).await
    }

    /// The alarms of all members.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>, Error> {
        let request = AlarmRequest { action: AlarmAction::Get.into(), ..AlarmRequest::default() };
        let response: AlarmResponse = self.call(&methods::ALARM, request).await?;
        Ok(response.alarms)
    }

    /// Ends an alarm of a member, after its cause is gone.
    pub async fn disarm(&self, alarm: AlarmMember) -> Result<(), Error> {
        let request = AlarmRequest {
            action: AlarmAction::Deactivate.into(),
            member_id: alarm.member_id,
            alarm: alarm.kind,
        };
        let _response: AlarmResponse = self.call(&methods::ALARM, request).await?;
        Ok(())
    }

    /// The members, as the member in use knows them.
    pub async fn member_list(&self) -> Result<MemberListResponse, Error> {
        self.call(&methods::MEMBER_LIST, MemberListRequest { linearizable: false }).await
    }

    /// The database of a member, as a file that `etcdctl snapshot restore` reads.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let (client, pool) = (self.clone(), self.pool().clone());
        let opened = pool.runtime().clone().spawn(async move {
            let connection = pool.dedicated(None).await?;
            let request = futures::stream::iter([SnapshotRequest {}]);
            let responses = connection.stream(&SNAPSHOT, request).await.map_err(|status| {
                client.describe_attempt(&connection, &SNAPSHOT).failure(&status).into_error()
            })?;
            Ok(Snapshot { client, connection, responses, remaining_bytes: None })
        });
        opened.await.unwrap_or_else(|error| Err(Error::not_reachable("etcd", error.to_string())))
    }
}

impl AlarmMember {
    /// Whether the quota of the database is used up.
    pub fn is_no_space(&self) -> bool {
        self.kind == i32::from(Alarm::NoSpace)
    }
}

/// The database of a member, part by part.
pub struct Snapshot {
    client: Client,
    connection: Connection,
    responses: Streaming<SnapshotResponse>,
    /// What follows after the last part; `None` before the first.
    remaining_bytes: Option<u64>,
}

impl Snapshot {
    /// The next part; `None` after the last. A database that arrives in part is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let attempt = self.client.describe_attempt(&self.connection, &SNAPSHOT);
        let response =
            self.responses.message().await.map_err(|status| attempt.failure(&status).into_error())?;
        match (response, self.remaining_bytes) {
            (Some(response), _) => {
                self.remaining_bytes = Some(response.remaining_bytes);
                Ok(Some(response.blob))
            }
            (None, Some(0)) => Ok(None),
            (None, _) => Err(attempt.invalid("it ends before its end")),
        }
    }
}
